"""The page of a job answers what its widgets say, keeps it in the URL, and shows errors."""

import json
from typing import Any

import hvplot
import panel as pn
import pytest
from bokeh.document import Document
from panel.io.location import Location
from panel.io.state import set_curdoc

from repro.catalog.jobs import Job, resolve
from repro.explorer.job_page import JobPage, estimate_fields
from repro.explorer.page_state import PackedText, sync_with_url
from repro.predict.explore.jobs.estimate import estimate

pytestmark = pytest.mark.slow

# Mixtral 8x7B, as its authors publish it: 46.7 billion parameters, 12.9 billion active
# (Jiang et al., Mixtral of Experts, 2024).
_MIXTRAL = {
    "model_type": "mixtral",
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "num_attention_heads": 32,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}
_ARGUMENTS = """--num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008
--num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --swiglu
--untie-embeddings-and-output-weights --disable-bias-linear --normalization RMSNorm
--position-embedding-type rope --vocab-size 32000 --bf16
--tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --micro-batch-size 2"""


@pytest.fixture(autouse=True)
def _served() -> None:
    """As in the server's process; other tests draw with matplotlib."""
    hvplot.extension("bokeh", logo=False)


def _shown(page: JobPage) -> tuple[pn.viewable.Viewable, Any]:
    """The layout, which must be kept, and the pane of the answer."""
    layout = page.layout()
    layout.get_root()
    return layout, layout[1][0]


def _opened(search: str) -> tuple[JobPage, list[str], Location]:
    location = Location(search=search)
    document = Document()
    with set_curdoc(document):
        pn.state._locations[document] = location
        page = JobPage()
        return page, _synced(page), location


def _synced(page: JobPage) -> list[str]:
    return sync_with_url({**page.widgets, "pasted": PackedText(page.pasted)})


def test_fields_of_widgets_are_those_of_a_job() -> None:
    fields = dict.fromkeys(JobPage().fields, None)
    assert set(fields) <= set(Job.model_fields)
    fields |= {"gpu": "h100-sxm-80gb", "gpus": 64, "nic": "8x200", "tp": 8, "zero": 0}
    asked = Job(model="llama3.1-70b", gpu="h100-sxm-80gb", gpus=64, nic="8x200", tp=8, zero=0)
    found = estimate_fields("llama3.1-70b", "", **fields)
    assert found.job == resolve(asked)
    assert found.iteration_time_s == estimate([resolve(asked)])[0].iteration_time_s


@pytest.mark.parametrize("indent", [None, 2])
def test_a_pasted_configuration_replaces_the_model(indent: int | None) -> None:
    pasted = f"\n {json.dumps(_MIXTRAL, indent=indent)}\n"
    job = estimate_fields("llama3.1-70b", pasted, gpu="h100-sxm-80gb", gpus=64, ep=8).job
    assert job.shape.count(8) == pytest.approx(46.7e9, rel=5e-3)
    assert job.shape.count(2) == pytest.approx(12.9e9, rel=5e-3)
    assert any(note.startswith("sequence length") for note in job.notes)
    job = estimate_fields("llama3.1-70b", pasted, gpu="h100-sxm-80gb", gpus=64, ep=8, seq=4096).job
    assert job.shape.seq == 4096
    assert not any(note.startswith("sequence length") for note in job.notes)


def test_pasted_arguments_bring_their_plan_unless_a_widget_has_another() -> None:
    page = JobPage()
    # Without a choice, no widget replaces a size of the arguments.
    values = {name: widget.value for name, widget in page.fields.items()}
    job = estimate_fields("llama3.1-70b", _ARGUMENTS, **values).job
    # Llama 2 7B: 6.74 billion parameters (Touvron et al., 2023).
    assert job.shape.count(0) == pytest.approx(6.74e9, rel=5e-3)
    assert (job.tp, job.pp, job.dp, job.micro_batch) == (2, 4, 8, 2)
    assert estimate_fields("", _ARGUMENTS, **{**values, "pp": 1}).job.pp == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tp": 7}, "gpus 64: no multiple of tp 7 x pp 1 x cp 1 = 7; fix: change one of them"),
        ({"pasted": '{"model_type": "mamba"}'}, "model_type 'mamba' is not understood; "),
        ({"pasted": "{1}"}, "not JSON ("),
        ({"pasted": "x" * 300}, "unknown model 'xxx"),
    ],
)
def test_an_error_is_shown_as_its_line(changes: dict[str, object], message: str) -> None:
    page = JobPage()
    _, answer = _shown(page)
    for name, value in changes.items():
        page.widgets[name].value = value
    assert isinstance(answer._pane, pn.pane.Alert)
    assert answer._pane.object.startswith(message) and "\n" not in answer._pane.object


def test_the_answer_has_the_verdict_two_figures_and_what_was_filled() -> None:
    page = JobPage()
    page.fields["gpu"].value = "h100-sxm-80gb"
    _, answer = _shown(page)

    def kinds() -> list[str]:
        return [type(part).__name__ for part in answer._pane]

    # bf16 weights and fp32 gradients of 8.03 billion parameters are 45 GiB, activations 34.
    assert "does not fit" in answer._pane[0].object
    assert kinds() == ["Alert", "HoloViews", "Markdown", "DataFrame", "HoloViews", "Markdown"]
    assert "tp 1, as not given" in answer._pane[-1].object
    page.fields["tp"].value = 8
    assert " fits, with " in answer._pane[0].object
    assert kinds() == ["Alert", "HoloViews", "HoloViews", "Markdown"]
    assert "tp 1" not in answer._pane[-1].object


def test_the_url_brings_the_job_back() -> None:
    page, refused, location = _opened("?nic=8x200&tp=4")
    assert refused == []
    page.pasted.value = json.dumps(_MIXTRAL, indent=1)
    page.fields["ep"].value = 8
    page.fields["zero"].value = 0
    page.fields["gpus"].value = None
    page.fields["precision"].value = "fp8"
    page.fields["precision"].value = ""
    again, refused, _ = _opened(location.search)
    assert refused == []
    values = {name: widget.value for name, widget in page.widgets.items()}
    assert {name: widget.value for name, widget in again.widgets.items()} == values
    assert values["gpus"] is None and values["zero"] == 0 and values["tp"] == 4


def test_what_a_url_has_wrong_is_said() -> None:
    page, refused, location = _opened("?tp=many&pasted=none&model=gpt-5&zero=9&pp=2")
    assert refused == [
        "URL: model is not understood: 'gpt-5'; its default is used",
        "URL: pasted is not understood: 'none'; its default is used",
        "URL: tp is not understood: 'many'; its default is used",
        "URL: zero is not understood: 9; its default is used",
    ]
    assert page.model.value == JobPage().model.value and page.fields["pp"].value == 2
    assert "model=gpt-5" not in location.search
