"""Decoders from Hugging Face's `config.json`, by `model_type`.

Every field must be understood: it gives a dimension, or it changes neither sizes nor times
(`params/ignored_fields.yaml`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from repro.catalog.models.decoder_rules import MOST_LAYERS, Biases, DecoderType, Fields, integer
from repro.catalog.models.decoder_types import DECODER_TYPES
from repro.catalog.models.ignored_fields import read_ignored
from repro.catalog.models.open_models import DecoderShape
from repro.errors import ReproError, of_file

# Longest sequence that is assumed for training where a file states what the model can take in.
LONGEST_ASSUMED = 8192
# Names of one dimension in the files of different types.
_NAMES = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "multi_query_group_num"),
    "head_dim": ("head_dim", "kv_channels"),
    "ffn": ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size"),
    "vocab": ("padded_vocab_size", "vocab_size"),
    "positions": ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len"),
    "window": ("sliding_window", "sliding_window_size"),
}
# Fields of windows, beside their size.
_WINDOWS = ("use_sliding_window", "sliding_window_pattern", "_sliding_window_pattern")
_WINDOW_FIELDS = (*_NAMES["window"], *_WINDOWS, "max_window_layers")
# Fields that any type may have.
_COMMON = frozenset(
    [
        *(name for kind, names in _NAMES.items() if kind != "window" for name in names),
        *("tie_word_embeddings", "layer_types", "vision_config", "audio_config"),
    ]
)
_BIASES: tuple[Biases, ...] = ("none", "qkv", "all")


@dataclass(frozen=True)
class ModelFile:
    """Decoder of a file.

    Attributes
    ----------
    label
        Name for messages.
    shape
        Dimensions.
    notes
        What was taken from where, or assumed; one phrase each.
    plan
        Parts of a plan that the file states, by field of `repro.catalog.jobs.Job`.
    published_formats
        Weights that engines load for a precision, as `OpenModel` has them.
    """

    label: str
    shape: DecoderShape
    notes: tuple[str, ...] = ()
    plan: Mapping[str, Any] = field(default_factory=dict)
    published_formats: Mapping[str, str] = field(default_factory=dict)


def read_config(path: Path) -> ModelFile:
    """Read a decoder from a `config.json`.

    Raises
    ------
    ReproError
        The file cannot be read; its type or a field is not understood, or a dimension is missing.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ReproError(f"{path}: {error.strerror}; fix: name a readable config.json") from None
    except UnicodeDecodeError as error:
        raise ReproError(f"{path}: not JSON ({error}); fix: give a config.json") from None
    with of_file(path, "correct this field"):
        return parse_config(text, path.stem)


def parse_config(text: str, label: str) -> ModelFile:
    """Read a decoder from the text of a `config.json`.

    Raises
    ------
    ReproError
        The text is no JSON object, its type or a field is not understood, or a dimension is
        missing.
    """
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ReproError(f"not JSON ({error}); fix: give a config.json") from None
    if not isinstance(given, dict):
        raise ReproError("not an object with fields; fix: give a config.json")
    return read_fields(given, label)


def read_fields(given: Fields, label: str) -> ModelFile:
    """Read a decoder from the fields of a `config.json`.

    Raises
    ------
    ReproError
        The type or a field is not understood, or a dimension is missing or wrong.
    """
    notes = [f"without {one}" for one in ("vision_config", "audio_config") if given.get(one)]
    text = given.get("text_config")
    if isinstance(text, dict):
        shared = {name: given.get(name) for name in ("model_type", "tie_word_embeddings")}
        given = {**shared, **text}
        notes.append("text part only, of text_config")
    name = str(given.get("model_type")).removesuffix("_text")
    if name not in DECODER_TYPES:
        raise ReproError(
            f"model_type {name[:40]!r} is not understood; understood: {', '.join(DECODER_TYPES)}"
        )
    of_type = DECODER_TYPES[name]
    _refuse_unknown(given, name, of_type)
    try:
        shape = _shape(given, name, of_type, notes)
    except ValidationError as error:
        first = error.errors()[0]
        raise ReproError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except (TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
        raise ReproError(f"a dimension is no number that fits the others ({error})") from None
    return ModelFile(label, shape, tuple(notes))


def _refuse_unknown(given: Fields, name: str, of_type: DecoderType) -> None:
    known = {*_COMMON, *of_type.fields, *of_type.bias_fields}
    if of_type.window != "none" or given.get("use_sliding_window") is False:
        known.update(_WINDOW_FIELDS)
    ignored = read_ignored().config
    for one, value in given.items():
        if one not in known and value is not None and not ignored.covers(one, value):
            raise ReproError(
                f"field {one[:40]} ({value!r:.40}) is not understood of a {name}; understood: "
                f"{', '.join(sorted(known))}"
            )


def _stated(given: Fields, of_type: DecoderType, dimension: str) -> int | None:
    """Return a dimension that the file states, or leaves to the default of its type."""
    names = [one for one in _NAMES[dimension] if one in given]
    found = next((one for one in names if given[one] is not None), None)
    if found is not None:
        value = integer(given, found)
        return None if value == 0 and dimension in ("kv_heads", "ffn", "window") else value
    return None if names else of_type.defaults.get(dimension)


def _needed(given: Fields, of_type: DecoderType, dimension: str) -> int:
    value = _stated(given, of_type, dimension)
    if not value:
        names = " or ".join(_NAMES[dimension])
        raise ReproError(f"{names} is {value!r}; must be a whole number above 0")
    return value


def _shape(given: Fields, name: str, of_type: DecoderType, notes: list[str]) -> DecoderShape:
    layers, hidden = _needed(given, of_type, "layers"), _needed(given, of_type, "hidden")
    heads, head_dim = _needed(given, of_type, "heads"), _stated(given, of_type, "head_dim")
    if layers > MOST_LAYERS:
        raise ReproError(f"{layers} layers; must be {MOST_LAYERS} at most")
    if head_dim is None and hidden % heads:
        raise ReproError(f"hidden size {hidden} is no multiple of {heads} heads; fix: add head_dim")
    ffn = _stated(given, of_type, "ffn") or (4 * hidden if of_type.four_times else None)
    shape: dict[str, Any] = {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": _stated(given, of_type, "kv_heads") or heads,
        "head_dim": head_dim or hidden // heads,
        "ffn": ffn or _needed(given, of_type, "ffn"),
        "gated_mlp": of_type.gated,
        "vocab": _needed(given, of_type, "vocab"),
        "tied": of_type.tied,
        "biases": _biases(given, of_type),
        **_sequence(given, of_type, notes),
        **_window(given, of_type, layers),
    }
    absent = [one for one in of_type.defaults if not any(of in given for of in _NAMES[one])]
    notes += [f"{one} {of_type.defaults[one]}, the default of {name}" for one in absent]
    if given.get("tie_word_embeddings") is None:
        notes.append(f"{'tied' if of_type.tied else 'untied'} embeddings, the default of {name}")
    else:
        shape["tied"] = given["tie_word_embeddings"]
    for rule in of_type.rules:
        shape |= rule(given, shape)
    if shape.get("window") and "attention_chunk_size" in of_type.fields:
        notes.append(f"chunks of {shape['window']} tokens, as a window of as many")
    if shape["heads"] % shape["kv_heads"]:
        raise ReproError(f"{heads} heads are no multiple of {shape['kv_heads']} key-value heads")
    if shape.get("experts_per_token", 0) > shape.get("experts", 0):
        raise ReproError(
            f"{shape['experts_per_token']} experts per token of {shape['experts']} experts"
        )
    return DecoderShape(**shape)


def _biases(given: Fields, of_type: DecoderType) -> Biases:
    """Return the linear layers with biases: of the type, unless the file has a field for them."""
    stated = [one for one in of_type.bias_fields if given.get(one) is not None]
    if not stated:
        return of_type.biases
    used = [of_type.bias_fields[one] for one in stated if given[one]]
    return max(used, key=_BIASES.index, default="none")


def _sequence(given: Fields, of_type: DecoderType, notes: list[str]) -> dict[str, int]:
    """Return the tokens of a sequence: what the model was made for, at most `LONGEST_ASSUMED`."""
    longest = _stated(given, of_type, "positions")
    if of_type.positions and not longest:
        longest = _needed(given, of_type, "positions")
    scaling = given.get("rope_scaling") or given.get("rope_parameters") or {}
    name = "original_max_position_embeddings"
    before = scaling.get(name) if isinstance(scaling, dict) else None
    stated = given.get("initial_context_length") or before or given.get(name) or longest
    seq = LONGEST_ASSUMED if stated is None else min(integer({name: stated}, name), LONGEST_ASSUMED)
    source = "from config.json" if seq == stated else f"as config.json allows {stated}"
    notes.append(f"sequence length {seq}, {'as not given' if stated is None else source}")
    return {"seq": seq, "positions": longest or 0 if of_type.positions else 0}


def _window(given: Fields, of_type: DecoderType, layers: int) -> dict[str, Any]:
    """Return the window of attention and the share of layers that have it."""
    used = given.get(
        "use_sliding_window", of_type.window != "later" or "window" in of_type.defaults
    )
    window = _stated(given, of_type, "window") if used else None
    share = _windowed(given, of_type, layers) if window else 0.0
    kinds = given.get("layer_types")
    if kinds is not None:
        share = _share_of(kinds, layers)
        if share and used and not window and "sliding_attention" in kinds:
            raise ReproError("layer_types has sliding_attention; fix: add sliding_window")
    return {"window": window, "windowed": share} if window and share else {}


def _windowed(given: Fields, of_type: DecoderType, layers: int) -> float:
    """Return the share of layers with a window, where `layer_types` does not list them."""
    if of_type.window == "later":
        return max(1 - integer(given, "max_window_layers") / layers, 0.0)
    if of_type.window == "all":
        return 1.0
    pattern = given.get("sliding_window_pattern") or given.get("_sliding_window_pattern")
    pattern = pattern or of_type.window
    if isinstance(pattern, str) and set(pattern) <= {"L", "G"}:
        # Such as LLLG: local, and global.
        local = [pattern[one % len(pattern)] == "L" for one in range(layers)]
    elif isinstance(pattern, int) and not isinstance(pattern, bool) and pattern > 0:
        local = [(one + 1) % pattern != 0 for one in range(layers)]
    else:
        raise ReproError(f"sliding_window_pattern {pattern!r:.40}; must be a number of layers")
    return sum(local) / layers


def _share_of(kinds: Any, layers: int) -> float:
    """Return the share of layers with a window or chunks, of a list of their kinds."""
    known = ("full_attention", "sliding_attention", "chunked_attention")
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise ReproError(f"layer_types {kinds!r:.40}; must list {layers} layers")
    unknown = [one for one in kinds if one not in known]
    if unknown:
        raise ReproError(f"layer_types has {unknown[0]!r:.40}; understood: {', '.join(known)}")
    return 1 - kinds.count("full_attention") / layers
