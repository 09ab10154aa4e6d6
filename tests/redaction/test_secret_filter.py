"""What is a secret goes, what is none stays; random ones by many drawn at random."""

from __future__ import annotations

import base64
import random
import string

import pytest

from llmtop.environment import variables
from llmtop.redaction.secret_filter import (
    MASK,
    is_secret_name,
    variable_without_secrets,
    without_secrets,
    words_without_secrets,
)

_DRAWN = random.Random(4711)
_BASE62 = string.ascii_letters + string.digits
_HEX = "0123456789abcdef"
COMMIT = "9fceb02d0ae598e95dc970b74767f19372d61af8"


def _some(alphabet: str, number: int) -> str:
    return "".join(_DRAWN.choice(alphabet) for _ in range(number))


KNOWN = {
    "a password in a URL": ("https://user:{}@host.com/x.git", "hunter2"),
    "a user that is a token": ("git clone https://{}@github.com/x.git", _some(_BASE62, 20)),
    "a password with a slash": ("postgres://u:{}@h/db", "a/b#c!"),
    "a password without a user": ("redis://:{}@h:6379/0", "pw"),
    "an index of pip": ("--extra-index-url https://__token__:{}@pypi.corp/simple", _some(_BASE62, 12)),
    "hugging face": ("python x.py {} y", "hf_" + _some(_BASE62, 34)),
    "github": ("{}", "ghp_" + _some(_BASE62, 36)),
    "openai": ("--x={}", "sk-proj-" + _some(_BASE62 + "-_", 40)),
    "aws": ("{}", "AKIA" + _some(string.ascii_uppercase + string.digits, 16)),
    "wandb by its variable": ("WANDB_API_KEY={} python x", _some(_HEX, 40)),
    "wandb by nothing": ("--entity x {}", _some(_HEX, 40)),
    "jwt": ("{}", "eyJhbGciOiJIUzI1NiJ9." + _some(_BASE62, 30) + "." + _some(_BASE62, 40)),
    "a header": ("-H 'Authorization: Bearer {}'", _some(_BASE62, 24)),
    "a header of a short key": ("X-Api-Key: {}", "abc123"),
    "an option": ("--api-key {}", "abc"),
    "an option with =": ("--password=correct{}", "horse"),
    "an option whose value is a name of secrets": ("--api-key {} --x", "argumentsecret"),
    "an option with = and a name of secrets": ("--hub-token={}", "anothersecret"),
    "a pin": ("unlock --user-pin {} --x", "4711"),
    "a variable": ("DB_PASSWORD={} python x", "hunter2"),
    "json": ('{{"password": "{}"}}', "hunter two"),
    "python": ('+    api_key = "{}"', "abcdef"),
    "yaml": ("+  secret: {}", "abcdef"),
    "a shell script": ("+export MY_TOKEN={}", "plainword"),
    "camel case": ('"clientSecret": "{}"', "abc-def"),
    "an item": ("os.environ['HF_TOKEN'] = '{}'", "zzz"),
    "a webhook": ("https://hooks.slack.com/services/{}", "T0/B0/" + _some(_BASE62, 24)),
    "a query": ("https://x.y/z?token={}&a=1", _some(_BASE62, 10)),
    "a private key": ("+-----BEGIN RSA PRIVATE KEY-----\n+{}\n+-----END RSA PRIVATE KEY-----", "b3BlbnNza"),
    "curl": ("curl -u me:{} https://x", "pa55"),
    "base64 whose pieces alone are short": ("x {} y", "LTHEsLKo9NsWP/eDeuBB8/SOGp7C4aun"),
    "base64 with three slashes": ("x {}", "0dz/StYlTIBM/ZM9oISAww2/IJYCCXRT"),
    "a key of a license": ("x {}", "7HXKQ-2M9PT-RW4VB-8LJ3N"),
    "hexadecimal digits as the value of a key": ("runs/key={}", "9fceb02d0ae598e95dc970b74767f19372d61af8"),
    "letters and digits in three turns": ("login: {}", "ab12cd34"),
    "a connection string": ("AccountName=a;AccountKey={};x", base64.b64encode(_DRAWN.randbytes(64)).decode()),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_named_or_shaped_as_a_secret_goes(name: str) -> None:
    text, secret = KNOWN[name]
    told = without_secrets(text.format(secret))
    assert secret not in told
    assert MASK in told


@pytest.mark.parametrize(
    ("words", "secret"),
    [
        (["train.py", "--api-key", "abc"], "abc"),
        (["train.py", "--password", "two words"], "words"),
        (["curl", "-u", "me:pa55"], "pa55"),
        (["x", "--wandb-key", "a1b2c3d4e5"], "a1b2c3d4e5"),
        (["HF_TOKEN=x y z", "python"], "y z"),
        (["train.py", "--x", COMMIT], COMMIT),
        (["train.py", "--revision", "qN8vT2mZx4LpW7sYb3KfR6dJ"], "qN8vT2mZ"),
    ],
)
def test_a_word_is_a_secret_by_the_one_before_it(words: list[str], secret: str) -> None:
    assert not any(secret in word for word in words_without_secrets(words))


@pytest.mark.parametrize(
    "words", [["--revision", COMMIT], [f"--revision={COMMIT}"], ["--sha256", 2 * COMMIT[:32]]]
)
def test_a_hash_stays_where_the_word_before_it_says_that_it_is_one(words: list[str]) -> None:
    assert words_without_secrets(["train.py", *words]) == ["train.py", *words]


@pytest.mark.parametrize(
    ("name", "secret"),
    [("dbpassword", True), ("mypasswd", True), ("secretkey", True), ("privatekey", True), ("bypass", False),
     ("compass", False), ("tokens", False), ("maxtokens", False), ("wordpress", False)],
)  # fmt: skip
def test_words_that_are_glued_together_name_a_secret(name: str, secret: bool) -> None:
    assert is_secret_name(name) is secret


@pytest.mark.parametrize(
    ("alphabet", "number", "least"),
    [(_BASE62, 32, 98), (_BASE62, 20, 94), (_HEX, 40, 99), (_HEX, 64, 99), (_BASE62 + "+/", 40, 98),
     (_BASE62 + "-_", 43, 98), (string.ascii_lowercase + string.digits, 32, 92)],
)  # fmt: skip
def test_what_is_random_goes_without_any_name(alphabet: str, number: int, least: int) -> None:
    drawn = [_some(alphabet, number) for _ in range(500)]
    gone = sum(secret not in without_secrets(f"python train.py --x {secret} y") for secret in drawn)
    assert 100 * gone / len(drawn) >= least


KEPT = """
train.py --lr 1e-4 --model meta-llama/Meta-Llama-3.1-8B-Instruct --max-tokens 4096 --seed 1234567890123456789
torchrun --nproc-per-node 8 --rdzv-id 4a3b2c1d9e8f7a6b --rdzv-endpoint node01:29500 train.py --pad-token <pad>
train.py --resume /data/checkpoints/2024-05-01T12-30-00/step_000123456/model-00001-of-00008.safetensors
accelerate launch --config_file configs/fsdp_llama3_70b_8xH100.yaml x.py --output_dir /data/u/llama3-70b-sft-lr2e5
eval.py --revision 9fceb02d0ae598e95dc970b74767f19372d61af8 --key-value-heads 8 --sort-key loss --pass-through
/root/.cache/huggingface/hub/models--gpt2/snapshots/607a30d783dfa663caf39e06633721c8d4cfcd7e/model.safetensors
llmtop-monitor @ git+https://github.com/org/repo@9fceb02d0ae598e95dc970b74767f19372d61af8
git@github.com:org/repo.git ssh://git@github.com/org/repo.git https://github.com/org/repo.git
launch --cpu-pin 4711 --pin-to-cpu 4712 train.py
index 15a23dc..f915104 100644
commit f915104aa0c2b7c84e5ad35d7e5cd2a4ff0fe1b2
    token = tokens[i]
    self.tokenizer = AutoTokenizer.from_pretrained(args.model)
max_new_tokens=128, eos_token="</s>", pad_token_id=0
GPU-8f6d3c1a-2b4e-5f60-7182-93a4b5c6d7e8 --bypass x --compass north
docker run image@sha256:9fceb02d0ae598e95dc970b74767f19372d61af89fceb02d0ae598e95dc970b7 python x.py
CUDA_VISIBLE_DEVICES=0,1 CUBLAS_WORKSPACE_CONFIG=:4096:8 python train.py --opt adamw_torch_fused --beta2=0.95
class TestThatTheWindowIsSteadyAndSaysWhenItIsNot(unittest.TestCase):
commit=9fceb02d0ae598e95dc970b74767f19372d61af8 md5=d41d8cd98f00b204e9800998ecf8427e revision=15a23dcf915104aa0c2b
cache/9fceb02d0ae598e95dc970b74767f19372d61af8/x.json commit=9fceb02d0ae598e95dc970b74767f19372d61af8/log
password: see the wiki page for it
a part number ABCDE-FGHIJ-KLMNO-PQRST has no digits
login: abcd1234e of two turns, cat LOLtli80Jy//OVMlINVFbR0o/5vAg/Y6
""".strip().splitlines()


@pytest.mark.parametrize("line", KEPT)
def test_what_is_no_secret_stays(line: str) -> None:
    assert without_secrets(line) == line


def test_variables_are_kept_by_a_list_of_names_alone() -> None:
    given = {
        "NCCL_DEBUG": "INFO",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "NCCL_AUTH": "hunter2",
        "TORCH_HUB_TOKEN": "x",
        "OMP_NUM_THREADS": "4",
        "WANDB_API_KEY": "y",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    }
    kept = variables.select_variables(given)
    assert kept == {name: given[name] for name in kept}
    assert set(kept) == {"NCCL_DEBUG", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PYTORCH_CUDA_ALLOC_CONF"}
    assert variables.omitted_names(given) == ["NCCL_AUTH", "TORCH_HUB_TOKEN"]
    assert variable_without_secrets("HF_TOKEN", "abc") == MASK


@pytest.mark.slow("random or many inputs; a neighbour has one case of each kind")
def test_it_stays_quick_on_text_made_to_slow_it_down() -> None:
    for piece in (
        "a-",
        "a_b",
        "x://",
        "a://b:",
        "token=",
        'password="',
        "curl ",
        "key ",
        "-----BEGIN PRIVATE KEY-----",
    ):
        without_secrets(piece * 20_000)
    without_secrets("key" + " " * 60_000)
