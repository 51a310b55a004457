"""Loads a checkpoint's tokenizer, whose ids are those of the folder's own files; trains new ones."""

from collections.abc import Iterable
from pathlib import Path

from prm_jax import InputError
from prm_jax.checkpoints.folders import base_of, no_checkpoint
from prm_jax.launch.config import expect
from prm_jax.launch.files import read_json

# Text whose ids transformers must read as the files have it: digits, signs, blanks, line ends, other scripts.
PROBE = "Café  №7:\n\tx² ≤ 3.5, so ки + -  naïve 数学 $\\boxed{12}$ \n\n√ a  b\t48 + 12 = 60\n\n-3.5%\r\n"


def load_tokenizer(folder: str | Path):
    """The tokenizer of a checkpoint folder; code in the folder is never run."""
    from transformers import AutoTokenizer

    folder = Path(folder)
    file, pieces, settings = (folder / f"tokenizer{end}" for end in (".json", ".model", "_config.json"))
    has_json = file.is_file() or (folder / "vocab.json").is_file()
    if not has_json and (base := base_of(folder)):
        return load_tokenizer(base)
    if not has_json and not pieces.is_file():  # transformers would return an empty one
        raise no_checkpoint(folder, "tokenizer.json, vocab.json or tokenizer.model")
    is_code = settings.exists() and "auto_map" in read_json(settings)
    expect(not is_code, f"{settings}: auto_map", "Python code, which is never run", "none")
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
        if file.is_file():
            return with_own_ids(tokenizer, folder)
        expected = None
        if not has_json:
            from sentencepiece import SentencePieceProcessor

            expected = SentencePieceProcessor(model_file=str(pieces)).encode(PROBE)
    except Exception as error:  # of many kinds, even the KeyError of a missing field
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        raise InputError(f"{folder}: no tokenizer that transformers can read ({reason})") from error
    # transformers splits double blanks otherwise in a Llama.
    is_right = expected in (None, tokenizer.encode(PROBE, add_special_tokens=False))
    expect(is_right, str(pieces), "ids other than SentencePiece's", "a tokenizer.json beside it")
    return tokenizer


def with_own_ids(tokenizer, folder: Path):
    """The tokenizer, or one by tokenizer.json alone where its ids differ: for some names of a class
    transformers makes its own rules of splitting, with which the model was not trained."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    own = Tokenizer.from_file(str(folder / "tokenizer.json"))
    own.no_truncation()  # a length to cut at or to pad to, which some files have, belongs to no text
    own.no_padding()
    ids = own.encode(PROBE, add_special_tokens=False).ids
    own_id = {token: own.token_to_id(token) for token in tokenizer.all_special_tokens}
    has_own = all(i in (None, tokenizer.convert_tokens_to_ids(token)) for token, i in own_id.items())
    if has_own and tokenizer.encode(PROBE, add_special_tokens=False) == ids:
        return tokenizer
    name = type(tokenizer).__name__
    print(f"tokenizer   {folder}: {name} splits text otherwise than tokenizer.json, which is used")
    return PreTrainedTokenizerFast.from_pretrained(str(folder))


def train_tokenizer(texts: Iterable[str], vocab: int):
    """Trains a byte-level BPE tokenizer for models without a checkpoint: any text encodes, each digit is a
    token. It is of the class with which transformers reads every `qwen2` folder, whatever its files say."""
    from transformers import Qwen2Tokenizer

    untrained = Qwen2Tokenizer(eos_token="<|endoftext|>", pad_token="<|endoftext|>", unk_token=None)
    return untrained.train_new_from_iterator(texts, vocab, show_progress=False)
