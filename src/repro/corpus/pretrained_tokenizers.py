"""Published tokenizers, converted to the format of the `tokenizers` library."""

from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from repro.catalog.models.papers import Family
from repro.corpus.tokenizer import END_OF_TEXT, SENTINELS, WORDPIECE_SPECIALS
from repro.corpus.vocabulary import TrainedTokenizer, byte_level, wordpiece, write_tokenizer
from repro.errors import ReproError, one_line

_SIZE_BYTES = 4


def import_tokenizer(family: Family, source: Path, tokenizer: Path) -> TrainedTokenizer:
    """Convert the published files of a family's tokenizer.

    Special tokens that Megatron needs and the tokenizer lacks get the next ids. GPT-2's tokenizer
    gets none (50257 tokens); BERT's gets `[BOS]` and `[EOS]` (30524 tokens). T5's gets all of
    them and a hundred sentinels (32107 tokens).

    Parameters
    ----------
    family
        The model family.
    source
        GPT: `vocab.json`, with `merges.txt` in the same folder. BERT: `vocab.txt`; the tokenizer
        converts to lower case if no token has a capital. T5: a SentencePiece model of pieces with
        scores (`spiece.model`).
    tokenizer
        The JSON file to write, in the format of the `tokenizers` library.

    Returns
    -------
    TrainedTokenizer
        Its size and digest.

    Raises
    ------
    ReproError
        A file is missing, or is not a tokenizer of the family.
    """
    fix = f"fix: correct tokenizer_files.{family} in params/corpus.yaml"
    if not source.is_file():
        raise ReproError(f"{source}: no such file; {fix}")
    try:
        imported = {"gpt": _gpt, "bert": _bert, "t5": _t5}[family](source)
    except Exception as error:  # the libraries raise no narrower type
        raise ReproError(
            f"{source}: not a tokenizer for {family} ({one_line(error)}); {fix}"
        ) from None
    return write_tokenizer(imported, tokenizer)


def _gpt(source: Path) -> Tokenizer:
    merges = source.with_name("merges.txt")
    if not merges.is_file():
        raise ValueError("no merges.txt in its folder")
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
    # SentencePiece's normalization: the model's own table, then repeated blanks become one.
    table = proto.normalizer_spec.precompiled_charsmap
    # The library takes as much memory as the table's first number says.
    if table and not 0 < int.from_bytes(table[:_SIZE_BYTES], "little") <= len(table) - _SIZE_BYTES:
        raise ValueError("its table of characters is damaged")
    steps = [normalizers.Precompiled(table)] if table else []
    tokenizer.normalizer = normalizers.Sequence(
        [*steps, normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    specials = [*WORDPIECE_SPECIALS, *SENTINELS]
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in specials])
    return tokenizer
