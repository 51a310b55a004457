"""Converts tokenizer.model, SentencePiece's file, to the tokenizer.json that transformers 4 made for Llama and Mistral.

transformers 5 also reads tokenizer.model, but drops the rule for leading blanks, so that even Math-Shepherd's mark
becomes another token. Only this file needs the sentencepiece package.
"""

import json
import shutil
from pathlib import Path

from prm_jax import InputError
from prm_jax.launch.files import read_json

PROBE = "Café  №7:\n\tx² ≤ 3.5, so ки + -  naïve 数学 $\\boxed{12}$ "  # both must encode it alike


def write_tokenizer(source: Path, to: Path):
    """Writes tokenizer.json and copies of the source folder's small files; InputError where it encodes PROBE otherwise
    than SentencePiece, whose model is then no byte-pair encoding with byte fallback."""
    try:
        from sentencepiece import SentencePieceProcessor
    except ImportError as error:
        why = "has tokenizer.model but no tokenizer.json; to read it: pip install sentencepiece"
        raise InputError(f"{source}: {why}") from error
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    for path in source.glob("*.json"):
        if path.name not in ("tokenizer.json", "model.safetensors.index.json"):
            shutil.copy(path, to)
    path = to / "tokenizer_config.json"
    settings = {"tokenizer_class": "LlamaTokenizer", "legacy": True}
    settings |= read_json(source / path.name) if path.exists() else {}
    try:
        pieces = SentencePieceProcessor(model_file=str(source / "tokenizer.model"))
    except (RuntimeError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{source / 'tokenizer.model'}: not a SentencePiece model ({reason})") from error
    names = [pieces.id_to_piece(i) for i in range(len(pieces))]
    vocab = {piece: i for i, piece in enumerate(names)}
    # Any two pieces that make up a third merge, the best score first.
    pairs = [(-pieces.get_score(i), (p[:k], p[k:])) for p, i in vocab.items() for k in range(1, len(p))]
    pairs = [(score, (a, b)) for score, (a, b) in pairs if a in vocab and b in vocab]
    merges = [pair for _, pair in sorted(pairs, key=lambda x: (x[0], vocab[x[1][0]], vocab[x[1][1]]))]
    unknown, begin, end = (
        names[i] if i >= 0 else None for i in (pieces.unk_id(), pieces.bos_id(), pieces.eos_id())
    )
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    special = [names[i] for i in range(len(names)) if pieces.is_control(i) or pieces.is_unknown(i)]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    if settings["legacy"] is False:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    blanks = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(blanks)
    if tokenizer.encode(PROBE).ids != pieces.encode(PROBE):
        why = "is no byte-pair encoding with byte fallback, as Llama's and Mistral's are; expected a tokenizer.json"
        raise InputError(f"{source / 'tokenizer.model'}: {why}")
    if begin is not None:
        begins = [(begin, vocab[begin])]
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{begin} $A", special_tokens=begins)
    tokenizer.save(str(to / "tokenizer.json"))
    tokens = {"unk_token": unknown, "bos_token": begin, "eos_token": end}
    path.write_text(json.dumps({key: token for key, token in tokens.items() if token} | settings))
