"""Tokenizers that exist, in the files that they are published as."""

import hashlib
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from repro.atomic import replacing
from repro.catalog.models.papers import Family
from repro.corpus.tokenizer import END_OF_TEXT, SENTINELS, WORDPIECE_SPECIALS
from repro.corpus.vocabulary import TrainedTokenizer, byte_level, wordpiece
from repro.errors import ReproError

_PARAMETERS = "params/corpus.yaml"


def take_tokenizer(family: Family, source: Path, tokenizer: Path) -> TrainedTokenizer:
    """Take over a family's tokenizer from the files that it is published as.

    Special tokens that it lacks and Megatron asks for are added behind its own: none to GPT-2's
    (50257 tokens), `[BOS]` and `[EOS]` to BERT's (30524 then), all of them and a hundred sentinels
    to T5's (32107 then).

    Parameters
    ----------
    family
        Which kind of tokenizer.
    source
        GPT: `vocab.json`, with `merges.txt` beside it. BERT: `vocab.txt`; it is of lower case if
        none of its tokens has a capital. T5: a SentencePiece model of pieces with scores
        (`spiece.model`).
    tokenizer
        The JSON file to write, in the format of the `tokenizers` library.

    Returns
    -------
    TrainedTokenizer
        Its size and digest.

    Raises
    ------
    ReproError
        A file is missing, or is not what the family needs.
    """
    if not source.is_file():
        raise ReproError(f"{source}: no such file; mend tokenizer_files.{family} in {_PARAMETERS}")
    try:
        taken = {"gpt": _gpt, "bert": _bert, "t5": _t5}[family](source)
    except Exception as error:  # the libraries raise nothing narrower
        raise ReproError(
            f"{source}: no tokenizer for {family} ({error}); mend tokenizer_files.{family} in "
            f"{_PARAMETERS}"
        ) from None
    with replacing(tokenizer) as temporary:
        taken.save(str(temporary))
    digest = hashlib.sha256(tokenizer.read_bytes()).hexdigest()
    return TrainedTokenizer(taken.get_vocab_size(), digest)


def _gpt(source: Path) -> Tokenizer:
    merges = source.with_name("merges.txt")
    if not merges.is_file():
        raise ValueError("merges.txt is not beside it")
    tokenizer = byte_level(models.BPE.from_file(str(source), str(merges)))
    if tokenizer.token_to_id(END_OF_TEXT) is None:
        raise ValueError(f"it has no {END_OF_TEXT}")
    tokenizer.add_special_tokens([END_OF_TEXT])
    return tokenizer


def _bert(source: Path) -> Tokenizer:
    model = models.WordPiece.from_file(str(source), unk_token="[UNK]")
    tokens = source.read_text(encoding="utf-8").split("\n")
    if tokens[0] != "[PAD]" or not {"[UNK]", "[CLS]", "[SEP]", "[MASK]"} <= set(tokens):
        raise ValueError("it must begin with [PAD] and have [UNK], [CLS], [SEP] and [MASK]")
    capitals = any(token != token.lower() for token in tokens if not token.startswith("["))
    tokenizer = wordpiece(model, lowercase=not capitals)
    tokenizer.add_special_tokens(list(WORDPIECE_SPECIALS))
    return tokenizer


def _t5(source: Path) -> Tokenizer:
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(  # type: ignore[attr-defined]
        source.read_bytes()
    )
    pieces = [(piece.piece, piece.score) for piece in proto.pieces]
    tokenizer = Tokenizer(models.Unigram(pieces, proto.trainer_spec.unk_id))
    # As SentencePiece does: the model's own table, and one blank where there are several.
    table = proto.normalizer_spec.precompiled_charsmap
    steps = [normalizers.Precompiled(table)] if table else []
    tokenizer.normalizer = normalizers.Sequence(
        [*steps, normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    specials = [*WORDPIECE_SPECIALS, *SENTINELS]
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in specials])
    return tokenizer
