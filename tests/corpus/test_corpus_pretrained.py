"""Tokenizers in the files that they are published as encode as their own libraries do."""

import json
from pathlib import Path

import pytest
from synthetic_corpus import Corpus, prose
from tokenizers import Tokenizer

from repro.corpus.config import Family
from repro.corpus.pretrained_tokenizers import import_tokenizer
from repro.corpus.tokenizer import LocalTokenizer
from repro.errors import ReproError

_TEXTS = [prose(70), prose(71), 'Ünïcode ﬁ "quotes", 12:30  two  blanks and 日本語.', "", " a "]


def test_gpts_vocabulary_and_merges(corpus: Corpus, tmp_path: Path) -> None:
    Tokenizer.from_file(str(corpus.tokenizer("gpt"))).model.save(str(tmp_path))
    made = import_tokenizer("gpt", tmp_path / "vocab.json", tmp_path / "gpt.json")
    taken, trained = LocalTokenizer(tmp_path / "gpt.json"), LocalTokenizer(corpus.tokenizer("gpt"))
    assert made.vocabulary_size == 1024 and taken.eod == trained.eod
    assert taken.tokenize_batch(_TEXTS) == trained.tokenize_batch(_TEXTS)


def test_berts_vocabulary(corpus: Corpus, tmp_path: Path) -> None:
    trained = LocalTokenizer(corpus.tokenizer("bert"))
    published = [token for token in trained.inv_vocab.values() if token not in ("[BOS]", "[EOS]")]
    (tmp_path / "vocab.txt").write_text("\n".join(published) + "\n", encoding="utf-8")
    made = import_tokenizer("bert", tmp_path / "vocab.txt", tmp_path / "bert.json")
    taken = LocalTokenizer(tmp_path / "bert.json")
    assert made.vocabulary_size == taken.vocab_size == 1024
    assert (taken.pad, taken.bos, taken.eos) == (0, 1022, 1023)
    for ours, theirs in zip(
        taken.tokenize_batch(_TEXTS), trained.tokenize_batch(_TEXTS), strict=True
    ):
        assert [taken.inv_vocab[i] for i in ours] == [trained.inv_vocab[i] for i in theirs]


def test_t5s_pieces(articles_file: Path, tmp_path: Path) -> None:
    import sentencepiece

    lines = (json.loads(line)["text"] for line in articles_file.read_text().splitlines())
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter("\n".join(lines).split("\n")),
        model_prefix=str(tmp_path / "spiece"),
        vocab_size=400,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    source = tmp_path / "spiece.model"
    made = import_tokenizer("t5", source, tmp_path / "t5.json")
    taken = LocalTokenizer(tmp_path / "t5.json")
    assert made.vocabulary_size == taken.vocab_size == 507
    assert len(taken.additional_special_tokens_ids) == 100 and taken.bos >= 400
    oracle = sentencepiece.SentencePieceProcessor(model_file=str(source))
    assert taken.tokenize_batch(_TEXTS) == oracle.encode(_TEXTS)


@pytest.mark.parametrize(
    ("family", "name", "content", "reason"),
    [
        ("gpt", "vocab.json", "{}", "no merges.txt in its folder"),
        ("bert", "vocab.txt", "a\nb\n", "must begin with"),
        ("t5", "spiece.model", "no", "not a tokenizer for t5"),
    ],
)
def test_other_files_are_refused(
    tmp_path: Path, family: Family, name: str, content: str, reason: str
) -> None:
    with pytest.raises(ReproError, match=r"no such file; fix: correct tokenizer_files"):
        import_tokenizer(family, tmp_path / name, tmp_path / "x.json")
    (tmp_path / name).write_text(content)
    with pytest.raises(ReproError, match=reason) as error:
        import_tokenizer(family, tmp_path / name, tmp_path / "x.json")
    assert "\n" not in str(error.value) and not (tmp_path / "x.json").exists()
