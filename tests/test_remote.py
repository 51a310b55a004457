"""Policies behind a server: a real one (`transformers serve`, a process of its own), and every fault by a stub that obeys a script."""

import contextlib
import dataclasses
import gzip
import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import urllib.request

import jax
import numpy as np
import pytest
from conftest import ROOT, call, printed

import evaluate
from prm_jax import InputError
from prm_jax.checkpoints.verifiers import OpenOptions, open_verifier
from prm_jax.data.pools import iter_pool
from prm_jax.formats import read_format
from prm_jax.generate import remote, sampling
from prm_jax.generate import samples as lab
from prm_jax.generate.policies import Sampling
from prm_jax.generate.remote import RemotePolicy, Served, Server, seeds
from prm_jax.generate.search_state import Node, SearchState

openai = pytest.importorskip("openai", reason="openai absent: pip install -r tests/requirements.txt")

BASE, PLAIN = str(ROOT / "prm_jax" / "assets" / "base"), read_format("plain")
GREEDY, ANY = Sampling(0.0, None, 1.0, 60), Sampling(1.0, None, 1.0, 60)
KEY = jax.random.key(0)
PREFIXES = [
    ("4 +5 *3 max2 -2 mod7?", ()), ("1 max2 min3 max4 +1 mod7?", ()), ("1 max2 min3 max4 +1 mod7?", ("1max2=2",)),
    ("6 *5 -4 +3 mod7?", ("6*5=2",)), ("6 *5 -4 +3 mod7?", ("6*5=2", "2-4=5")),
]  # fmt: skip


class Real:
    """`transformers serve` of the embedded policy, on a port that stays its own when it is started again."""

    def __init__(self, folder):
        self.folder = folder
        with socket.socket() as free:
            free.bind(("localhost", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://localhost:{self.port}"
        self.asked = [f"checkpoint={self.url}", f"server.model={BASE}", "server.retries=1", "checker=chain"]
        self.start()

    def start(self):
        # One thread: the model is small, and the other test process needs the other core.
        environment = os.environ | {
            "HF_HUB_OFFLINE": "1",
            "HF_HUB_CACHE": str(self.folder),
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", "transformers.cli.transformers", "serve", BASE, "--device", "cpu"]
        with open(self.folder / "serve.log", "ab") as log:
            self.process = subprocess.Popen(
                [*command, "--port", str(self.port)], env=environment, stdout=log, stderr=subprocess.STDOUT
            )
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{self.url}/health").close()
                return
            except OSError:
                assert self.process.poll() is None, (self.folder / "serve.log").read_text()[-2000:]
                time.sleep(0.1)
        raise AssertionError("the server does not answer")

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def policy(self, law, **more):
        return RemotePolicy(self.url, PLAIN, law, server=Server(model=BASE, retries=1), **more)


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    for package in ("fastapi", "uvicorn", "accelerate"):
        pytest.importorskip(
            package, reason=f"transformers serve needs {package}: pip install -r tests/requirements.txt"
        )
    served = Real(tmp_path_factory.mktemp("serve"))
    yield served
    served.kill()


@pytest.fixture(scope="module")
def ours():
    return sampling.open_policy(BASE, "best", PLAIN, "float32", GREEDY, 8)


@pytest.mark.slow
@pytest.mark.parametrize("law", [GREEDY, dataclasses.replace(GREEDY, max_tokens=9)])
@pytest.mark.parametrize("stop", ["step", "end"])
def test_greedy_texts_and_their_ends_are_our_own_policys(real, ours, law, stop):
    remote = sampling.open_policy(real.url, "best", PLAIN, "float32", law, 8, Server(model=BASE))
    assert remote.model.server == "transformers" and remote.name == f"{BASE} at {real.url}"
    found = remote.extend(PREFIXES, 1, stop, KEY)
    expected = dataclasses.replace(ours, sampling=law).extend(PREFIXES, 1, stop, KEY)
    told = lambda samples: [(c.text, c.finish_reason, len(c.ids_L)) for own in samples for c in own]
    assert told(found) == told(expected)
    ends = {"step": {"stop"}, "end": {"eos"} if law.max_tokens == 60 else {"length"}}[stop]
    assert {c.finish_reason for own in found for c in own} == ends
    for own in found:  # what this server does not say is not made up
        assert (own[0].ids_L == -1).all() and np.isnan(own[0].logp_L).all()
    assert remote.stats.tokens == sum(len(own[0].ids_L) for own in expected) and remote.stats.prompts == 5


@pytest.mark.slow
def test_samples_differ_and_depend_on_key_prefix_and_number_alone(real):
    remote = real.policy(ANY)
    whole = remote.extend(PREFIXES[:2], 6, "end", KEY)
    texts = lambda found: [[(c.text, len(c.ids_L)) for c in own] for own in found]
    assert len({c.text for c in whole[0]}) > 1  # `transformers serve` is greedy unless it is told otherwise
    assert texts(remote.extend(PREFIXES[1:2], 3, "end", KEY, first=1)) == [texts(whole)[1][:3]]
    assert texts(remote.extend(PREFIXES[1::-1], 2, "end", KEY, first=[1, 0])) == [
        own[:2] for own in texts(whole)[::-1]
    ]
    assert texts(remote.extend(PREFIXES[:1], 6, "end", jax.random.key(1)))[0] != texts(whole)[0]
    few = real.policy(dataclasses.replace(ANY, temperature=3.0, top_k=1)).extend(PREFIXES[:1], 3, "step", KEY)
    assert {c.text for c in few[0]} == {"4+5=1\n"}


@pytest.mark.slow
def test_a_pool_from_a_server_that_dies_goes_on_and_is_the_undisturbed_one(real, monkeypatch, tmp_path):
    problems = tmp_path / "problems.jsonl"
    problems.write_text("".join(json.dumps({"problem": f"{n} +5 *3 max2 mod7?"}) + "\n" for n in range(6)))
    # Two problems are drawn at a time.
    asked = [*real.asked, f"input={problems}", "n=2", "batch_rows=1", "sampling.max_tokens=60"]
    out = printed(sampling.main, monkeypatch, *asked, f"hydra.run.dir={tmp_path}/a", cwd=tmp_path)
    whole = (tmp_path / "a" / "pool.jsonl").read_bytes()
    pool = list(iter_pool(tmp_path / "a" / "pool.jsonl"))
    assert [len(p.candidates) for p in pool] == [2] * 6 and "12 continuations of 6 distinct prompts" in out
    assert [c.correct for p in pool for c in p.candidates] == [
        c.answer == p.answer for p in pool for c in p.candidates
    ]
    about = json.loads((tmp_path / "a" / "about.json").read_text())
    assert about["weights"] == f"not known: served as {BASE} by transformers" and about["finished"]
    assert (
        about["counts"]["policy_tokens"]
        == sum(json.loads(line)["policy_tokens"] for line in whole.splitlines())
        > 0
    )

    ask, n_asked = RemotePolicy.ask, []

    def ask_and_kill(self, *args):
        n_asked.append(args)
        if len(n_asked) == 7:
            real.kill()
        return ask(self, *args)

    monkeypatch.setattr(RemotePolicy, "ask", ask_and_kill)
    said = call(sampling.main, monkeypatch, "sampling", *asked, f"hydra.run.dir={tmp_path}/b")
    monkeypatch.setattr(RemotePolicy, "ask", ask)
    assert said.startswith(f"error: {real.url}: no continuation of '3 +5 *3 max2 mod7?': Connection error. (")
    part = (tmp_path / "b" / "pool.jsonl").read_bytes()
    assert part == b"".join(whole.splitlines(keepends=True)[:2])
    assert json.loads((tmp_path / "b" / "about.json").read_text())["finished"] is False
    real.start()
    out = printed(sampling.main, monkeypatch, f"resume={tmp_path}/b", "server.retries=3", cwd=tmp_path)
    assert (tmp_path / "b" / "pool.jsonl").read_bytes() == whole and "2 resumed" in out


@pytest.mark.slow
def test_what_the_real_server_refuses_is_said(real, monkeypatch):
    with pytest.raises(
        InputError, match="server.model: got None, expected a name: `transformers serve` does not say"
    ):
        RemotePolicy(real.url, PLAIN, ANY)
    with pytest.raises(
        InputError, match=f"{real.url}: no continuation of '4[?]': status 400: .*pinned to '{BASE}'"
    ):
        RemotePolicy(real.url, PLAIN, ANY, server=Server(model="other")).extend([("4?", ())], 1, "end", KEY)
    with pytest.raises(
        InputError, match=f"{real.url}/wrong: no continuation of '4[?]': status 404: .*Not Found"
    ):
        wrong = RemotePolicy(f"{real.url}/wrong", PLAIN, ANY, server=Server(model=BASE))
        wrong.extend([("4?", ())], 1, "end", KEY)


# A stub


def answer(text="7\n", finish="stop", tokens=3, **more):
    choice = {"text": text, "index": 0, "finish_reason": finish, **more}
    return {"choices": [choice], "usage": {"completion_tokens": tokens}}


@pytest.fixture
def stub():
    """A server that answers the next request for a completion with what stands in `script`, or else with `answer()`.

    An entry: (status, JSON or bytes), None (the connection is dropped in the middle), a number (seconds until it answers),
    or a function of the handler.
    """
    lock, state = threading.Lock(), type("Stub", (), {"models": [{"id": "m", "owned_by": "vllm"}]})()
    state.script, state.bodies, state.now, state.most, state.delay, state.listed = [], [], 0, 0, 0.0, 0

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def give(self, status, body, length=None):
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(length or len(data)))
            self.send_header("retry-after-ms", "1")
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self):
            state.key = self.headers["Authorization"]
            if self.path == "/v1/models":
                state.listed += 1
                if callable(state.models):
                    return state.models(self)
                self.give(
                    *((200, {"data": state.models}) if isinstance(state.models, list) else state.models)
                )
            else:
                self.give(404, {"detail": "Not Found"})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                state.bodies.append(body)
                state.now += 1
                state.most = max(state.most, state.now)
                entry = state.script.pop(0) if state.script else (200, answer())
            time.sleep(entry if isinstance(entry, float) else state.delay)
            with lock:
                state.now -= 1
            if callable(entry):
                entry(self)
            elif entry is None:
                self.give(200, answer(), length=10_000)
                self.close_connection = True
            else:
                self.give(*((200, answer()) if isinstance(entry, float) else entry))

    server = http.server.ThreadingHTTPServer(("localhost", 0), Handler)
    state.url = f"http://localhost:{server.server_port}"
    state.policy = lambda law=ANY, fmt=PLAIN, **more: RemotePolicy(
        state.url, fmt, law, server=Server(**{"retries": 2, "timeout": 5.0} | more)
    )
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield state
    server.shutdown()


def test_a_request_that_fails_is_repeated_with_the_same_seed(stub):
    stub.script = [
        (500, {"detail": "boom"}),
        (429, {}),
        (200, answer("5\n6\n", tokens=5)),
        None,
        (200, answer("8")),
    ]
    policy = stub.policy(concurrency=1)
    (one, two), = policy.extend([("4?", ())], 2, "end", KEY)  # fmt: skip
    assert (one.text, len(one.ids_L), two.text) == ("5\n6\n", 5, "8") and policy.stats.tokens == 8
    assert [b["seed"] for b in stub.bodies] == [stub.bodies[0]["seed"]] * 3 + [stub.bodies[3]["seed"]] * 2
    assert stub.bodies[0]["seed"] != stub.bodies[3]["seed"]


@pytest.mark.parametrize(
    ("script", "n_asked", "why"),
    [
        ([(500, {"detail": "boom"})] * 9, 3, 'status 500: {"detail": "boom"}'),
        ([2.0] * 9, 3, "Request timed out."),
        (
            [(400, {"error": {"message": "too long for 4096 tokens"}})],
            1,
            "status 400: .*too long for 4096 tokens",
        ),
        ([(404, {"error": {"message": "no model m"}})], 1, "status 404: .*no model m"),
        ([(200, b'{"choices": [{"text": "7')], 1, "Unterminated string"),
        (
            [(200, {"choices": answer()["choices"] * 2, "usage": {"completion_tokens": 3}})],
            1,
            "answered .*one choice",
        ),
        ([(200, {"choices": [], "usage": {"completion_tokens": 0}})], 1, "answered .*one choice"),
        ([(200, {"choices": answer()["choices"]})], 1, "answered .*with its usage"),
        ([(200, answer(finish="abort"))], 1, "answered .*one choice that has ended"),
        ([(200, answer(text=None))], 1, "answered .*one choice"),
        ([(200, [])], 1, "answered .*one choice"),
    ],
)
def test_what_fails_for_good_is_an_error_and_no_sample(stub, script, n_asked, why):
    stub.script = script
    policy = stub.policy(concurrency=1, timeout=0.2)
    with pytest.raises(InputError, match=f"^{stub.url}: no continuation of '4[?]3[+]4=0.n': .*{why}"):
        policy.extend([("4?", ("3+4=0",)), ("5?", ())], 2, "end", KEY)
    assert len(stub.bodies) <= n_asked + 1  # the others were not asked any more, but for one that had begun
    assert policy.stats.tokens == policy.stats.continuations == 0


def with_choice(tokens=3, **fields):
    return {"choices": answer(**fields)["choices"], "usage": {"completion_tokens": tokens}}


@pytest.mark.parametrize(
    "body",
    [
        with_choice(tokens=10**10), with_choice(tokens=10**30), with_choice(tokens=-1), with_choice(tokens=True),
        with_choice(tokens=3.0), with_choice(tokens="3"), with_choice(tokens=61), with_choice(text="x" * 4001),
        with_choice(token_ids=[1, 2, 2**40]), with_choice(token_ids={"0": 1, "1": 2, "2": 3}),
        with_choice(token_ids=[[1], [2], [3]]), with_choice(token_ids=[1.0, 2.0, 3.0]), with_choice(token_ids=[-2, 0, 0]),
        with_choice(token_ids="abc"), with_choice(token_ids=[True, 1, 1]), with_choice(token_ids=[1]),
        with_choice(logprobs={"token_logprobs": [5.0, -1.0, -1.0]}), with_choice(logprobs={"token_logprobs": [[-1.0]] * 3}),
        with_choice(logprobs={"token_logprobs": [float("nan")] * 3}), with_choice(logprobs={"token_logprobs": [-1e300] * 3}),
        with_choice(logprobs={"token_logprobs": 7}), with_choice(logprobs=[1]), with_choice(logprobs="x"),
        with_choice(finish=["stop"]), {"choices": {"0": 1}, "usage": {"completion_tokens": 3}}, {"choices": 5}, None, 3,
        b"[" * 100_000, b'{"a":' * 100_000, b"\xff\xfe", b"1" * 5000,
    ],
    ids=lambda body: str(body)[:80],
)  # fmt: skip
def test_each_field_of_a_reply_is_checked_before_it_is_used(stub, body):
    stub.script = [(200, body)] * 9
    with pytest.raises(InputError, match=f"^{stub.url}: no continuation of '4[?]': ") as caught:
        stub.policy(concurrency=1).extend([("4?", ())], 1, "end", KEY)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "data",
    [
        5,
        None,
        "m",
        {"id": "m"},
        [5],
        [None],
        [{"id": 5}],
        [{"id": None}],
        [{"id": ["m"]}],
        [{"id": {}}],
        [{}],
        b"[" * 100_000,
    ],
    ids=lambda data: str(data)[:40],
)
def test_odd_listings_of_models_are_one_line(stub, data):
    stub.models = 200, data if isinstance(data, bytes) else {"data": data}
    with pytest.raises(
        InputError, match=f"^{stub.url}: (lists no model|no server of the completions protocol)"
    ) as caught:
        stub.policy()
    assert "\n" not in str(caught.value)


def test_texts_that_no_file_can_hold_are_mended_and_counted(stub, capsys):
    stub.models = [{"id": "m\ud800", "owned_by": "vllm"}]
    stub.script = [(200, answer("a\ud800b\U0001f600\udc00")), (200, answer("whole \U0001f600"))]
    policy = stub.policy(concurrency=1)
    (one, two), = policy.extend([("4?", ())], 2, "end", KEY)  # fmt: skip
    assert (one.text, two.text) == (
        "a\ufffdb\U0001f600\ufffd",
        "whole \U0001f600",
    ) and policy.model.name == "m\ufffd"
    said = f"samples     m\ufffd at {stub.url}: 1 of 2 texts have U+FFFD for what is no character\n"
    assert capsys.readouterr().out == said


def endless(piece, seconds=0.0, head=b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"):
    """A reply that begins with `head` and never ends."""

    def reply(handler):
        handler.close_connection = True
        with contextlib.suppress(OSError):
            handler.wfile.write(head)
            while True:
                handler.wfile.write(piece)
                time.sleep(seconds)

    return reply


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (endless(b" ", 0.05), "Request timed out. .timed out"),
        (endless(b"X: y\r\n", 0.05, b"HTTP/1.1 200 OK\r\n"), "Request timed out. .timed out"),
        (endless(b" " * 2**16), "Connection error. .its reply is longer than any"),
        (endless(b" " * 2**16, 0, b"HTTP/1.1 200 OK\r\nX: "), "Connection error. "),
    ],
)
def test_a_whole_reply_has_a_limit_of_time_and_of_size(stub, reply, why, monkeypatch):
    monkeypatch.setattr(remote, "MOST", 1 << 20)
    policy, stub.script, start = stub.policy(timeout=0.2, retries=0), [reply], time.perf_counter()
    with pytest.raises(InputError, match=f"^{stub.url}: no continuation of '4[?]': {why}"):
        policy.extend([("4?", ())], 1, "end", KEY)
    assert time.perf_counter() - start < 2


def test_a_packed_reply_is_refused(stub):
    packed = gzip.compress(b" " * 10**7)
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(packed)}\r\n\r\n".encode()
    stub.script = [lambda handler: handler.wfile.write(head + packed)]
    with pytest.raises(InputError, match=f"^{stub.url}: no continuation of '4[?]': sent a packed reply"):
        stub.policy().extend([("4?", ())], 1, "end", KEY)


def test_every_search_asks_the_server_for_its_model_once_in_all(stub):
    policy = stub.policy()
    explorers = [SearchState(policy, None, ["4?"], "prod", 1, KEY) for _ in range(6)]  # methods x budgets
    assert stub.listed == 1 and {state.greedy.client for state in explorers} == {policy.client}
    stub.script = [(200, answer("7")), (200, answer("7"))]
    ((node,),) = explorers[0].write([Node(0)], 1, "end")
    explorers[0].write([Node(0)], 1, "end", policy=explorers[0].greedy)
    assert node.steps == ("7",) and [body["temperature"] for body in stub.bodies] == [1.0, 0]


def test_requests_run_side_by_side_up_to_the_limit(stub):
    stub.delay = 0.1
    found = stub.policy(concurrency=4).extend([(f"{n}?", ()) for n in range(4)], 5, "end", KEY)
    assert [len(own) for own in found] == [5] * 4 and stub.most == 4
    assert stub.policy().extend([], 3, "end", KEY) == []


def test_a_server_that_repeats_itself_is_noticed(stub, capsys):
    """As SGLang did that was deterministic and ignored the seed of a completion (issue 15481)."""
    warning = f"samples     m at {stub.url}: the 9 of each prefix are the same text; does it heed temperature and seed?\n"
    stub.policy().extend([("4?", ()), ("5?", ())], 9, "end", KEY)
    assert capsys.readouterr().out == warning
    stub.policy(GREEDY).extend([("4?", ()), ("5?", ())], 9, "end", KEY)
    stub.script = [(200, answer("8"))]
    stub.policy().extend([("4?", ()), ("5?", ())], 9, "end", KEY)
    assert capsys.readouterr().out == ""


def test_every_sample_has_a_seed_of_its_own(stub):
    stub.policy(concurrency=1).extend([("4?", ()), ("5?", ())], 3, "end", KEY, first=7)
    assert [b["prompt"] for b in stub.bodies] == ["4?"] * 3 + ["5?"] * 3
    drawn = [b["seed"] for b in stub.bodies]
    assert drawn == seeds(KEY, np.repeat([7, 8], 3), np.tile(np.arange(3), 2)).tolist()
    assert len(set(drawn)) == 6 and min(drawn) >= 0 and max(drawn) < 2**31


def test_vllm_is_told_the_whole_law_and_tells_ids_and_what_stopped_it(stub):
    known = {"token_ids": [5, 6], "logprobs": {"token_logprobs": [-0.5, -0.25]}}
    stub.script = [
        (200, answer("1+2=3", tokens=2, stop_reason="\n", **known)),
        (200, answer("7", stop_reason=None)),
    ]
    stub.script += [(200, answer("7", stop_reason=151645)), (200, answer("1+2", "length", stop_reason=None))]
    policy = stub.policy(dataclasses.replace(ANY, top_k=20, top_p=0.9), concurrency=1)
    (step, *rest), = policy.extend([("1 +2?", ("0+1=1",))], 4, "step", KEY)  # fmt: skip
    assert (step.text, step.finish_reason) == ("1+2=3\n", "stop")
    assert (
        step.ids_L.tolist() == [5, 6]
        and step.logp_L.tolist() == [-0.5, -0.25]
        and step.logp_L.dtype == np.float32
    )
    assert [(c.text, c.finish_reason) for c in rest] == [("7", "eos"), ("7", "eos"), ("1+2", "length")]
    assert stub.bodies[0] | {"seed": 0} == {
        "model": "m", "prompt": "1 +2?0+1=1\n", "seed": 0, "stop": ["\n"], "max_tokens": 60, "temperature": 1.0,
        "top_p": 0.9, "top_k": 20, "min_p": 0.0, "repetition_penalty": 1.0, "logprobs": 0, "return_token_ids": True,
    }  # fmt: skip


def test_sglang_names_what_stopped_it_and_gives_log_probabilities_of_the_tempered_law(stub):
    stub.models = [{"id": "m", "owned_by": "sglang"}]
    stub.script = [(200, answer("1+2=3", matched_stop="\n")), (200, answer("7", matched_stop=151645))]
    found = stub.policy(dataclasses.replace(ANY, temperature=0.5), concurrency=1).extend(
        [("1?", ())], 2, "step", KEY
    )
    assert [(c.text, c.finish_reason) for c in found[0]] == [("1+2=3\n", "stop"), ("7", "eos")]
    assert stub.bodies[0]["top_k"] == -1 and "logprobs" not in stub.bodies[0]
    stub.policy().extend([("1?", ())], 1, "end", KEY)
    assert stub.bodies[-1]["logprobs"] == 0 and "stop" not in stub.bodies[-1]


def test_a_server_that_does_not_say_what_stopped_it_is_refused_steps(stub):
    stub.models = [{"id": "m", "owned_by": "someone"}]
    stub.script = [(200, answer("1+2=3\n\nmore", tokens=9)), (200, answer("1+2", "length"))]
    found = stub.policy(concurrency=1).extend([("1?", ())], 2, "step", KEY)[0]
    assert [(c.text, c.finish_reason, len(c.ids_L)) for c in found] == [
        ("1+2=3\n", "stop", 9),
        ("1+2", "length", 3),
    ]
    stub.script = [(200, answer("1+2=3"))]
    with pytest.raises(InputError, match="does not say whether the step or the text ended"):
        stub.policy().extend([("1?", ())], 1, "step", KEY)
    assert stub.policy().extend([("1?", ())], 1, "end", KEY)[0][0].finish_reason == "eos"
    with pytest.raises(InputError, match="sampling.top_k: got 9, expected null"):
        stub.policy(dataclasses.replace(ANY, top_k=9))


def test_model_and_key(stub, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert stub.policy().name == f"m at {stub.url}" and stub.key == "Bearer none"
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert (
        sampling.fingerprint(stub.policy(model="m").model) == "not known: served as m by vllm"
        and stub.key == "Bearer secret"
    )
    with pytest.raises(InputError, match="server.model: got 'x', expected of http://.*: .'m'."):
        stub.policy(model="x")
    stub.models = [{"id": "a"}, {"id": "b"}]
    with pytest.raises(InputError, match=f"{stub.url}: lists a, b; name one: server.model=NAME"):
        stub.policy()
    stub.models = 404, {"detail": "Not Found"}
    assert stub.policy(model="m").model == Served("m", "other")
    stub.models = 401, {"error": {"message": "wrong key"}}
    with pytest.raises(InputError, match="status 401: .*wrong key.*; its key is read from OPENAI_API_KEY"):
        stub.policy(model="m")
    stub.models = 200, b"<html>"
    with pytest.raises(InputError, match=f"{stub.url}: no server of the completions protocol"):
        stub.policy(model="m")


def test_where_there_is_no_server_or_no_client_one_line_says_so(monkeypatch, tmp_path):
    problems = tmp_path / "problems.jsonl"
    problems.write_text('{"problem": "4?"}\n')
    asked = ["checkpoint=http://localhost:9", f"input={problems}", f"hydra.run.dir={tmp_path}/a"]
    said = call(sampling.main, monkeypatch, "sampling", *asked)
    assert said.startswith(
        "error: http://localhost:9: no server of the completions protocol: Connection error. ("
    )
    monkeypatch.setitem(sys.modules, "openai", None)
    said = call(sampling.main, monkeypatch, "sampling", *asked)
    assert (
        said
        == "error: http://localhost:9: a policy behind a server needs the package openai: pip install openai"
    )
    assert not (tmp_path / "a" / ".hydra").exists()


def test_samples_behind_a_server_are_not_kept_by_name(stub):
    with pytest.raises(
        InputError, match="data.policy: the policy: got 'http://.*expected a model of ours: samples are"
    ):
        lab.open_lab_policy(stub.url, 1.0, 60)


def test_formats_that_need_a_tokenizer_are_refused(stub):
    with pytest.raises(InputError, match="format: got 'auto', expected a convention that is text"):
        stub.policy(fmt=read_format("auto"))
    with pytest.raises(
        InputError, match="format: got 'qwen_prm', expected a convention in which nothing but"
    ):
        stub.policy(fmt=read_format("qwen_prm"))
    with pytest.raises(InputError, match="prefix '': got '', expected a text of at least one token"):
        stub.policy().extend([("", ())], 1, "end", KEY)


# Critics and judges


def echo(token, logp, **more):
    """What is said of a prompt that is sent back with the log-probabilities of its tokens."""
    logprobs = {"tokens": ["x", token], "token_logprobs": [None, logp]}
    return {
        "choices": [{"text": "", "finish_reason": "length", "logprobs": logprobs | more}],
        "usage": {"completion_tokens": 0},
    }


JUDGE = dataclasses.replace(read_format("judge"), chat=False)
JUDGE = dataclasses.replace(JUDGE, critic=dataclasses.replace(JUDGE.critic, max_tokens=60))


@pytest.fixture
def judge(stub):
    """JUDGE behind the stub, which is asked for one thing at a time."""

    def opened(fmt=JUDGE, **more):
        critic = open_verifier(
            stub.url,
            OpenOptions(format=dataclasses.replace(fmt, critic=dataclasses.replace(fmt.critic, **more))),
        )
        policy = critic.writer.policy
        policy.concurrency, policy.client = 1, policy.client.with_options(max_retries=1, timeout=5.0)
        return critic

    return opened


def test_a_judge_behind_a_server_writes_and_its_verdict_is_exact(stub, judge, capsys):
    stub.script = [
        (200, answer("It is 7.\nVerdict: Yes", tokens=9)),
        (200, answer("Hm, 8", "length", tokens=60)),
    ]
    stub.script += [(503, {}), (200, echo(" Yes", -0.25)), (200, echo(" No", -2.25))]
    stub.script += [(200, echo(" Yes", -0.25)), (200, echo(" No", -2.25))]
    critic = judge(votes=2)
    assert critic.score([("3 +4?", ("3+4=7",))])[0].tolist() == pytest.approx([2.0])
    assert critic.name == f"m at {stub.url}, judge, 2 votes" and critic.stats.tokens == 69
    assert (
        "critic      1 of 2 critiques came to no verdict within 60 tokens: forced" in capsys.readouterr().out
    )
    first, second, _, good, bad, *forced = stub.bodies
    assert [b["prompt"] for b in forced] == [first["prompt"] + f"Hm, 8\nVerdict:{x}" for x in (" Yes", " No")]
    assert (
        "Problem:\n3 +4?\n" in first["prompt"]
        and first["prompt"] == second["prompt"]
        and first["seed"] != second["seed"]
    )
    assert (first["temperature"], first["max_tokens"], first["top_p"]) == (1.0, 60, 1.0)
    assert good == {
        "model": "m", "prompt": first["prompt"] + "It is 7.\nVerdict: Yes", "echo": True, "max_tokens": 0, "logprobs": 0,
        "temperature": 1.0,
    } and bad["prompt"] == first["prompt"] + "It is 7.\nVerdict: No"  # fmt: skip
    n = len(stub.bodies)
    assert (
        critic.score([("3 +4?", ("3+4=7",))])[0].tolist() == pytest.approx([2.0]) and len(stub.bodies) == n
    )  # known


def test_asked_at_once_a_judge_is_asked_for_two_log_probabilities_alone(stub, judge):
    stub.script = [(200, echo(" Yes", -3.0)), (200, echo(" No", -1.0))]
    assert judge(max_tokens=0, ask="Verdict:").score([("3 +4?", ("3+4=7",))])[0].tolist() == [-2.0]
    assert [b["prompt"][-13:] for b in stub.bodies] == ["\nVerdict: Yes", ".\nVerdict: No"]


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (
            [(200, answer("Verdict: Yes")), (200, answer("Yes"))],
            "no verdict after .*Verdict:': answered .*log-probabilities [(]echo",
        ),
        (
            [(200, answer("Verdict: Yes")), (200, echo("Yes", -1.0))],
            "its last token is 'Yes' with .*-1.0, not ' Yes' alone",
        ),
        ([(200, answer("Verdict: Yes")), (200, echo(" Yes", None))], "its last token is ' Yes' with .*None"),
        ([(200, answer("Verdict: Yes")), (200, echo(" Yes", True))], "its last token is ' Yes' with .*True"),
        ([(200, answer("Verdict: Yes")), (200, echo(" Yes", 0.5))], "its last token is ' Yes' with .*0.5"),
        (
            [(200, answer("Verdict: Yes")), (200, echo(" Yes", float("nan")))],
            "its last token is ' Yes' with .*nan",
        ),
        (
            [(200, answer("Verdict: Yes")), (400, {"detail": "echo is not supported"})],
            "status 400: .*echo is not supported",
        ),
        ([(500, {})] * 5, "no continuation of .*status 500"),
    ],
)
def test_a_verdict_that_fails_is_an_error_and_no_score(stub, judge, script, why):
    stub.script = script
    with pytest.raises(InputError, match=f"^{stub.url}: .*{why}"):
        judge().score([("3 +4?", ("3+4=7",))])


def test_the_turns_of_a_critic_behind_a_server_are_its_tokenizers_and_begin_once(stub, judge):
    critic = judge(dataclasses.replace(JUDGE, chat=True))
    turns = lambda messages, **_: "<s>[" + "][".join(m["role"] for m in messages) + "]"
    critic.writer.tokenizer, critic.writer.bos = types.SimpleNamespace(apply_chat_template=turns), "<s>"
    stub.script = [(200, answer("Verdict: No")), (200, echo(" Yes", -2.0)), (200, echo(" No", -1.0))]
    assert critic.score([("3 +4?", ("3+4=7",))])[0].tolist() == [-1.0]
    assert [b["prompt"] for b in stub.bodies] == ["[user]", "[user]Verdict: Yes", "[user]Verdict: No"]


def test_a_chat_critic_behind_a_server_needs_its_tokenizer(stub):
    with pytest.raises(
        InputError, match="format.critic.tokenizer: got None, expected the tokenizer whose chat template"
    ):
        open_verifier(stub.url, OpenOptions(format=read_format("genprm"))).score([("3 +4?", ("3+4=7",))])
    with pytest.raises(InputError, match=f"checkpoint: {stub.url}: is a server, .*format=judge"):
        open_verifier(stub.url, OpenOptions(format=read_format("plain")))


def test_evaluations_take_a_judge_by_its_address(stub, monkeypatch, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "3 +4?", "completions": ["3+4=7", "7"], "id": "a"}\n')
    stub.script = [(200, answer("Verdict: No"))] * 2 + [
        (200, echo(" Yes", -2.0)),
        (200, echo(" No", -1.0)),
    ] * 2
    asked = [
        "task=score",
        f"checkpoint={stub.url}",
        "format=judge",
        "format.chat=false",
        f"input={rows}",
        "figures=0",
    ]
    find = RemotePolicy.__post_init__
    one = lambda self: (find(self), setattr(self, "concurrency", 1))[0]
    monkeypatch.setattr(RemotePolicy, "__post_init__", one)
    printed(evaluate.main, monkeypatch, *asked, f"hydra.run.dir={tmp_path}/run", cwd=tmp_path)
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["verifier"] == f"m at {stub.url}, judge, 1 vote" and results["critic"]["critiques"] == 2
    (scored,) = map(json.loads, (tmp_path / "run" / "scores.jsonl").read_text().splitlines())
    assert scored["scores"] == [-1.0, -1.0] and scored["unit"] == "logit"
