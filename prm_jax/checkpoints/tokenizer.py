"""Loads the tokenizer of a checkpoint folder, with the ids of its own files."""

from pathlib import Path

from prm_jax import InputError
from prm_jax.checkpoints.folders import base_of
from prm_jax.launch.config import expect
from prm_jax.launch.files import read_json

# Text on which transformers' reading of a tokenizer.model must agree with SentencePiece's own.
PROBE = "Café  №7:\n\tx² ≤ 3.5, so ки + -  naïve 数学 $\\boxed{12}$ "


def load_tokenizer(folder: str | Path):
    """The tokenizer of a checkpoint folder; code in the folder is never run."""
    from transformers import AutoTokenizer

    folder = Path(folder)
    pieces, settings = folder / "tokenizer.model", folder / "tokenizer_config.json"
    has_json = (folder / "tokenizer.json").is_file() or (folder / "vocab.json").is_file()
    if not has_json and (base := base_of(folder)):
        return load_tokenizer(base)
    if not has_json and not pieces.is_file():  # transformers would return an empty one
        raise InputError(f"{folder}: has no tokenizer.json, vocab.json or tokenizer.model")
    is_code = settings.exists() and "auto_map" in read_json(settings)
    expect(not is_code, f"{settings}: auto_map", "Python code, which is never run", "none")
    expected = None
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
        if not has_json:
            from sentencepiece import SentencePieceProcessor

            expected = SentencePieceProcessor(model_file=str(pieces)).encode(PROBE)
    except Exception as error:  # of many kinds, even the KeyError of a missing field
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        raise InputError(f"{folder}: no tokenizer that transformers can read ({reason})") from error
    # transformers splits double blanks otherwise in a Llama.
    is_right = expected is None or tokenizer.encode(PROBE, add_special_tokens=False) == expected
    expect(is_right, str(pieces), "ids other than SentencePiece's", "a tokenizer.json beside it")
    return tokenizer
