"""The HTTP scorer: its answers are task=score's, nothing is lost under load, and what is wrong gets a reason and harms nobody."""

import asyncio
import contextlib
import dataclasses
import http.client
import json
import re
import select
import signal
import socket
import struct
import sys
import threading
import time
import types

import hydra
import jax
import numpy as np
import pytest
from conftest import LAST_DECIDES, ROOT, call, printed, start
from starlette.requests import Request

from prm_jax import InputError, tasks
from prm_jax.bench import __main__ as bench_command
from prm_jax.bench import serve as bench
from prm_jax.data.units import probability
from prm_jax.formats import Encoded
from prm_jax.launch.config import CONF, parse
from prm_jax.launch.mesh import modest_mesh
from prm_jax.rerank import solution_scores
from prm_jax.scorers import RandomScorer
from prm_jax.serve import __main__ as command
from prm_jax.serve import bodies, compare
from prm_jax.serve.app import App, make_server, peer
from prm_jax.serve.bodies import Refused
from prm_jax.serve.worker import Job
from prm_jax.tasks import chain

PROBLEM = "4 +5 *3 mod7?"
RIGHT, WRONG, SHORT = ("4+5=2", "2*3=6"), ("4+5=3", "3*3=2"), ("4+5*3=6",)
JSON = {"Content-Type": "application/json"}


def config(*overrides):
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return parse(hydra.compose("serve", ["checkpoint=embedded_orm", *overrides]), command.ServeConfig)


DEFAULTS = config()  # before a command runs in this process


@pytest.fixture(scope="module")
def scorer():
    return command.open_served(config("batch.rows=2"))[0]


@contextlib.contextmanager
def served(scorer, token=None, how="min", host="127.0.0.1", batch=(), stop_seconds=5, **limits):
    """(address, App) of a server in this process."""
    batch = dataclasses.replace(DEFAULTS.batch, **dict(batch))
    limits = dataclasses.replace(DEFAULTS.limits, **limits)
    app = App(scorer, ("embedded_orm",), how, limits, batch, host, token, command.PAGE.read_bytes())
    with command.listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        server = make_server(app, "127.0.0.1", port, stop_seconds)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{port}", app
        finally:
            server.should_exit = True
            thread.join()
            app.worker.stop()


@pytest.fixture(scope="module")
def address(scorer):
    with served(scorer, seconds=5.0) as (url, _):
        yield url


def ask(url, method, path, body=None, headers=JSON, source="127.0.0.1"):
    """(status, JSON or text, headers) of one request."""
    connection = http.client.HTTPConnection(
        url.removeprefix("http://"), timeout=20, source_address=(source, 0)
    )
    body = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    is_json = answer.headers["content-type"] == "application/json"
    return answer.status, json.loads(text) if is_json else text, answer.headers


def raw(url, *parts, pause=0.0):
    """What a server sends to a client that writes these bytes, with a pause after each part."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as client:
        for part in parts:
            client.sendall(part)
            time.sleep(pause)
        return to_the_end(client).decode()


def to_the_end(client):
    answer = b""
    with contextlib.suppress(ConnectionResetError):
        while part := client.recv(1 << 16):
            answer += part
    return answer


# Answers


def test_one_solution_and_candidates_of_many_problems(address, scorer):
    logit = {
        row: x
        for row, x in zip((RIGHT, WRONG, SHORT), scorer.score([(PROBLEM, s) for s in (RIGHT, WRONG, SHORT)]))
    }
    status, one, _ = ask(
        address, "POST", "/score", {"problem": PROBLEM, "steps": WRONG, "aggregator": "prod"}
    )
    (scored,) = one["problems"][0]["candidates"]
    assert status == 200 and scored["weakest_step"] == int(logit[WRONG].argmin()) + 1
    np.testing.assert_allclose(scored["log_odds"], logit[WRONG], atol=1e-5)
    np.testing.assert_allclose(scored["probability"], 1 / (1 + np.exp(-logit[WRONG])), atol=1e-6)
    np.testing.assert_allclose(scored["log_score"], -np.logaddexp(0, -logit[WRONG]).sum(), rtol=2e-5)
    about = {"model": "embedded_orm", "aggregator": "prod", "unit": "logit", "label_kind": "correctness"}
    assert {key: one[key] for key in about} == about and one["problems"][0]["ranking"] == [0]

    candidates = [WRONG, RIGHT, SHORT, RIGHT]
    body = {
        "problems": [{"problem": PROBLEM, "candidates": candidates}, {"problem": PROBLEM, "steps": SHORT}]
    }
    _, many, _ = ask(address, "POST", "/score", body)
    best, alone = many["problems"]
    lowest = [logit[row].min() for row in candidates]
    np.testing.assert_allclose(
        [c["log_score"] for c in best["candidates"]], -np.logaddexp(0, -np.array(lowest)), rtol=2e-5
    )
    assert best["ranking"] == sorted(range(4), key=lambda i: -lowest[i])  # of equal ones the first leads
    assert [len(c["log_odds"]) for c in best["candidates"]] == [2, 2, 1, 2] and len(alone["candidates"]) == 1


def test_the_shipped_prm_ranks_the_right_solution_first():
    """By the command of docs/vllm.md, and of the page's example, where another is right by wrong steps."""
    (body,) = re.findall(r"curl localhost:8000/score .* -d '(.*)'", (ROOT / "docs/vllm.md").read_text())
    page = command.PAGE.read_text()
    problem = re.search(r'<textarea id="problem"[^>]*>(.*?)<', page)[1]
    example = [x.split("\n") for x in json.loads(re.search(r"(\[.*\])\.forEach\(addSolution\)", page)[1])]
    (sound,) = (i for i, own in enumerate(example) if all(tasks.step_labels(chain, problem, own)))
    with served(command.open_served(config("checkpoint=embedded_prm"))[0]) as (url, _):
        for asked, first in ((body, 0), ({"problem": problem, "candidates": example}, sound)):
            _, got, _ = ask(url, "POST", "/score", asked)
            assert got["problems"][0]["ranking"][0] == first


def test_an_outcome_model_ranks_by_its_last_score_where_nothing_is_said(scorer):
    problem, right, wrong = LAST_DECIDES
    body = {"problem": problem, "candidates": [right, wrong]}
    with served(scorer, how=config().aggregator) as (url, _):
        answers = [ask(url, "POST", "/score", body | more)[1] for more in ({}, {"aggregator": "min"})]
        assert ask(url, "GET", "/health")[1]["aggregator"] == "last"
    assert [(x["aggregator"], x["problems"][0]["ranking"]) for x in answers] == [
        ("last", [0, 1]),
        ("min", [1, 0]),
    ]


def test_aggregates_of_ragged_solutions():
    scores = [np.log(np.array(p) / (1 - np.array(p))).astype(np.float32) for p in ([0.5, 0.8, 0.9], [0.4])]
    np.testing.assert_allclose(np.exp(solution_scores(scores, "prod", rounded=True)), [0.36, 0.4], rtol=2e-5)
    np.testing.assert_allclose(np.exp(solution_scores(scores, "last", rounded=True)), [0.9, 0.4], rtol=2e-5)


def test_pooling_has_vllms_shape_and_the_scores_of_score(address, scorer):
    """The text as our format writes it, its token ids, and both at once, which are a batch."""
    text = PROBLEM + "".join(step + "\n" for step in WRONG)
    ids = scorer.tokenizer.encode(text, add_special_tokens=False)
    first = ids[: ids.index(ids[-1]) + 1]  # up to the first step's tag
    expected = probability(scorer.score([(PROBLEM, WRONG)])[0])[:, None]
    for given, n in ((text, 1), ([text, text], 2), (ids, 1), ([ids, first, text], 3)):
        status, got, _ = ask(address, "POST", "/pooling", {"input": given, "task": "token_classify"})
        assert status == 200 and [row["index"] for row in got["data"]] == list(range(n))
        assert got["object"] == "list" and {row["object"] for row in got["data"]} == {"pooling"}
        np.testing.assert_allclose(got["data"][0]["data"], expected, atol=1e-6)
    assert got["usage"]["prompt_tokens"] == 2 * len(ids) + len(first) and got["model"] == "embedded_orm"
    _, got, _ = ask(
        address, "POST", "/pooling", {"input": ids, "use_activation": False, "model": "embedded_orm"}
    )
    np.testing.assert_allclose(probability(got["data"][0]["data"]), expected, atol=1e-6)


@pytest.mark.parametrize(("head", "outcome"), [("binary", False), ("mlp", False), ("scalar", True)])
def test_pooling_of_other_heads(head, outcome):
    fmt = types.SimpleNamespace(outcome=outcome)
    fake = types.SimpleNamespace(
        format=fmt, model=types.SimpleNamespace(cfg=types.SimpleNamespace(head=head))
    )
    logit_T = np.array([0.0] if outcome else [0.0, np.log(3)], np.float32)
    job = Job(scores=[logit_T])
    shown = lambda activated: bodies.pooling_answer(job, activated, fake, "m")["data"][0]["data"]
    np.testing.assert_allclose(shown(True), [0.5] if outcome else [[0.5, 0.5], [0.25, 0.75]], rtol=1e-6)
    np.testing.assert_allclose(shown(False), [0] if outcome else [[0, 0], [0, np.log(3)]], atol=1e-6)


def test_a_scorer_without_a_model_is_served_too():
    with served(RandomScorer(0)) as (url, _):
        _, got, _ = ask(url, "POST", "/score", {"problem": "p", "steps": ["a", "b"]})
        np.testing.assert_allclose(
            got["problems"][0]["candidates"][0]["log_odds"], RandomScorer(0).score([("p", ("a", "b"))])[0]
        )
        status, refused, _ = ask(url, "POST", "/pooling", {"input": "p"})
        assert status == 400 and "it scores texts, without tokens; POST /score" in refused["error"]["message"]
        assert "prm_jax_tokens_total" not in ask(url, "GET", "/metrics")[1]


def test_health_metrics_and_page(scorer):
    with served(scorer) as (url, _):
        for body, status in (({"problem": PROBLEM, "steps": RIGHT}, 200), ({}, 400)):
            assert ask(url, "POST", "/score", body)[0] == status
        ask(url, "GET", f"/{'x' * 50}")
        _, about, _ = ask(url, "GET", "/health")
        assert (about["status"], about["model"], about["objective"]) == ("ok", "embedded_orm", "orm")
        _, text, headers = ask(url, "GET", "/metrics")
        assert headers["content-type"].startswith("text/plain; version=0.0.4")
        for line in ('requests_total{path="/score",status="200"} 1', 'requests_total{path="/score",status="400"} 1',
                     'requests_total{path="other",status="404"} 1', 'batch_solutions_bucket{le="1"} 1', "steps_total 2",
                     "batch_solutions_count 1", "request_seconds_count 4", "requests_waiting 0", "requests_arriving 0"):  # fmt: skip
            assert f"\nprm_jax_{line}\n" in text
        assert re.fullmatch(r"(# (HELP|TYPE) .*\n|[a-z_]+(\{[^}]*\})? [-+.e\d]+\n)*", text)
        assert ask(url, "GET", "/")[2]["content-security-policy"].startswith("default-src 'none'")


# Under load


def test_many_clients_at_once_get_what_task_score_gives(monkeypatch, tmp_path, scorer):
    """The bench's own comparison, with a server in this process."""

    @contextlib.contextmanager
    def started():
        with served(scorer) as (url, _):
            yield url

    monkeypatch.setattr(bench, "started", started)
    sizes = [f"serve.{key}" for key in ("requests=96", "candidates=2", "clients=64", "repeats=1")]
    monkeypatch.setattr(sys, "argv", ["bench", "what=serve", *sizes, f"hydra.run.dir={tmp_path}/bench"])
    bench_command.main()
    got = json.loads((tmp_path / "bench" / "results.json").read_text())
    assert got["serve_lost_requests"] == 0 and got["serve_largest_difference"] < 1e-5
    ratio = got["serve_solutions_per_second"] / got["score_solutions_per_second"]
    assert got["serve_share_of_score"] == pytest.approx(ratio)
    assert 0 < got["serve_p50_milliseconds"] <= got["serve_p99_milliseconds"]


class Gate:
    """A scorer that waits until it may go on, and notes how many solutions it is given at a time."""

    name, unit, label_kind, objective = "gate", "logit", "unknown", "prm"

    def __init__(self):
        self.open, self.sizes, self.problems = threading.Event(), [], []

    def score(self, rows):
        self.sizes.append(len(rows))
        self.problems.append({problem for problem, _ in rows})
        self.open.wait(20)
        if any("fail" in problem for problem, _ in rows):
            raise RuntimeError("a secret of /home/me")
        if any("InputError" in problem for problem, _ in rows):
            raise InputError("problem: holds the separator")
        return [
            np.full(len(steps), np.nan if "nan" in problem else len(problem), np.float32)
            for problem, steps in rows
        ]


def in_threads(url, problems):
    """Requests that are on their way, and their answers once they are joined."""
    found = {}

    def one(problem):
        found[problem] = ask(url, "POST", "/score", {"problem": problem, "steps": ["s"]})

    threads = [threading.Thread(target=one, args=(problem,)) for problem in problems]
    for thread in threads:
        thread.start()
    return threads, found


def until(is_so):
    end = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_what_waits_is_scored_together_and_one_failure_is_no_one_elses(caplog):
    gate = Gate()
    with served(gate) as (url, app):
        first, _ = in_threads(url, ["first"])
        until(lambda: gate.sizes == [1])
        problems = ["fail", "InputError", "nan", *(f"good {'x' * n}" for n in range(9))]
        threads, found = in_threads(url, problems)
        until(lambda: len(app.metrics.waiting) == 13)
        gate.open.set()
        for thread in first + threads:
            thread.join()
    assert gate.sizes[1] == 12  # then halves
    assert {name: found[name][0] for name in problems[:3]} == {"fail": 500, "InputError": 400, "nan": 500}
    assert found["InputError"][1]["error"]["message"] == "problem: holds the separator"
    assert "secret" not in str(found) and "Traceback" not in str(found) and "secret" in caplog.text
    for problem in problems[3:]:
        assert found[problem][1]["problems"][0]["candidates"][0]["log_odds"] == [len(problem)]


def test_a_batch_takes_no_more_solutions_than_it_may():
    gate = Gate()
    with served(gate, batch={"solutions": 4}) as (url, app):
        first, _ = in_threads(url, ["first"])
        until(lambda: gate.sizes == [1])
        threads, found = in_threads(url, [f"good {n}" for n in range(9)])
        until(lambda: len(app.metrics.waiting) == 10)
        gate.open.set()
        for thread in first + threads:
            thread.join()
    assert gate.sizes == [1, 4, 4, 1] and {answer[0] for answer in found.values()} == {200}


def post(problem, candidates=1, headers=""):
    """The bytes of a request."""
    body = json.dumps({"problem": problem, "candidates": [["s"]] * candidates}).encode()
    head = f"POST /score HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


def connected(url):
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


@pytest.mark.parametrize("batch", [{"solutions": 3}, {"characters": 33}])
def test_a_large_request_takes_turns_with_small_ones(batch):
    """A solution has 11 characters: nine of the problem, its step and its end."""
    gate = Gate()
    with served(gate, batch=batch) as (url, app), connected(url) as large, connected(url) as small:
        large.sendall(post("large 012", candidates=9))
        until(lambda: gate.sizes == [3])
        small.sendall(post("small 012"))
        until(lambda: len(app.metrics.waiting) == 2)
        gate.open.set()
        answers = [one.recv(1 << 16).partition(b"\r\n\r\n")[2] for one in (small, large)]
    assert gate.sizes == [3, 3, 3, 1] and gate.problems[1] == {"small 012", "large 012"}
    small, large = (json.loads(answer)["problems"][0]["candidates"] for answer in answers)
    assert [c["log_odds"] for c in small + large] == [[9.0]] * 10 and len(large) == 9


def test_what_costs_too_much_is_refused_before_it_is_tokenised(address, scorer, monkeypatch):
    """The last problem fits by its characters, so it is tokenised, once."""
    calls, score = [], scorer.score
    monkeypatch.setattr(scorer, "score", lambda rows: calls.append(len(rows)) or score(rows))
    long, wide = {"problem": "1" * 980_000}, {"problem": "1" * 100_000}
    for body, why in (
        (long | {"candidates": [["s"]] * 400}, "the longest solution: got '980002 characters', expected at most 131072"),
        (wide | {"candidates": [["s"]] * 50}, "the body: got '5000100 characters in all solutions', expected at most 4194304"),
        ({"problems": [{"problem": "2", "steps": ["s"]}, long | {"steps": ["s"]}]}, "got '980002 characters'"),
        (wide | {"candidates": [["s"]] * 40}, "a solution has 100"),
    ):  # fmt: skip
        begun = time.monotonic()
        status, answer, _ = ask(address, "POST", "/score", body)
        assert status == 413 and why in answer["error"]["message"] and time.monotonic() - begun < 1
    assert calls == [1]
    status, answer, _ = ask(address, "POST", "/pooling", {"input": ["1" * 140_000, "2"]})
    assert status == 413 and "got '140000 characters'" in answer["error"]["message"]


def test_the_sum_over_candidates_is_a_limit_of_its_own():
    gate = Gate()
    gate.open.set()
    with served(gate, characters=90) as (url, _):
        for n, status in ((9, 200), (10, 413)):
            assert ask(url, "POST", "/score", {"problem": "p" * 8, "candidates": [["s"]] * n})[0] == status


@pytest.mark.parametrize("leave", ["reset", "close"])
def test_the_jobs_of_clients_that_have_left_are_not_scored(leave):
    gate = Gate()
    with served(gate) as (url, app):
        first, found = in_threads(url, ["first"])
        until(lambda: gate.sizes == [1])
        with connected(url) as client:
            client.sendall(post("gone"))
            until(lambda: len(app.metrics.waiting) == 2)
            if leave == "reset":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        until(lambda: app.metrics.requests["/score", 499] == 1)
        assert len(app.metrics.waiting) == 1
        gate.open.set()
        first[0].join()
    assert found["first"][0] == 200 and gate.problems == [{"first"}]


def test_a_client_that_ends_its_side_after_its_requests_gets_the_answers():
    gate = Gate()
    with served(gate) as (url, app), connected(url) as client:
        client.sendall(post("one") + post("second"))
        client.shutdown(socket.SHUT_WR)
        until(lambda: gate.sizes == [1])
        time.sleep(1.1)  # it is asked twice whether it has left
        gate.open.set()
        answer = to_the_end(client)
        assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\n") and answer.count(b"HTTP/1.1 200 OK") == 2
        assert b'"log_odds":[3.0]' in answer and b'"log_odds":[6.0]' in answer
    assert app.metrics.requests == {("/score", 200): 2}


def test_bodies_that_arrive_slowly_give_way_to_others():
    gate = Gate()
    gate.open.set()
    with served(gate, requests=2) as (url, app), contextlib.ExitStack() as stack:
        slow = [stack.enter_context(connected(url)) for _ in range(2)]
        for client in slow:
            client.sendall(post("slow")[:-5])
        until(lambda: len(app.metrics.arriving) == 2)
        assert ask(url, "POST", "/score", {"problem": "quick", "steps": ["s"]})[0] == 200
        slow.sort(key=lambda client: not select.select([client], [], [], 0.2)[0])  # the oldest first
        assert b"408" in slow[0].recv(1 << 16) and len(app.metrics.arriving) == 1
        slow[1].sendall(post("slow")[-5:])
        assert slow[1].recv(1 << 16).startswith(b"HTTP/1.1 200 OK")


def test_stopping_ends_in_time_and_says_what_was_not_answered(tmp_path):
    """One request is scored, one waits and one's body arrives when the time is over; the model goes on for a minute."""
    script = tmp_path / "slow.py"
    script.write_text(
        "import time\nfrom prm_jax.serve import __main__ as command\n"
        "class Slow:\n    name, unit, label_kind, objective = 'slow', 'logit', 'unknown', 'prm'\n"
        "    def score(self, rows):\n        time.sleep(60)\n"
        "command.open_served = lambda cfg: (Slow(), 'slow')\ncommand.main()\n"
    )
    process = start(
        script,
        "port=0",
        "stop_seconds=1",
        f"hydra.run.dir={tmp_path}/run",
        cwd=tmp_path,
        PYTHONPATH=str(ROOT),
    )
    try:
        assert process.stdout.readline() == "verifier    slow\n"
        url = process.stdout.readline().split()[1]
        with connected(url) as scored, connected(url) as waits, connected(url) as arrives:
            scored.sendall(post("a"))
            waits.sendall(post("b"))
            arrives.sendall(post("c")[:-1])
            until(lambda: "waiting 2" in (text := ask(url, "GET", "/metrics")[1]) and "arriving 1" in text)
            begun = time.monotonic()
            process.send_signal(signal.SIGTERM)
            answers = [to_the_end(client) for client in (scored, waits, arrives)]
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 1 and time.monotonic() - begun < 4
    assert (
        out.endswith("0 steps scored; 3 left unanswered after stop_seconds=1\n")
        and "Traceback" not in out + err
    )
    assert all(answer.startswith(b"HTTP/1.1 503") and b"the server stopped" in answer for answer in answers)
    assert json.loads((tmp_path / "run" / "results.json").read_text())["requests"]["other 503"] == 3


def test_the_thread_that_scores_has_the_mesh_of_the_server():
    """JAX keeps a mesh for each thread; without it a CPU's second device would be idle."""

    class Asks(Gate):
        def score(self, rows):
            seen.append(jax.sharding.get_mesh())
            return [np.zeros(len(steps), np.float32) for _, steps in rows]

    seen, mesh = [], modest_mesh(4)
    with jax.set_mesh(mesh), served(Asks()) as (url, _):
        assert ask(url, "POST", "/score", {"problem": "p", "steps": ["s"]})[0] == 200
    assert seen == [mesh] and not mesh.empty


def test_a_long_solution_widens_the_rows_of_its_own_batch_alone(scorer):
    for problem, width in (("1" * 600, 1024), (PROBLEM, 256)):
        scorer.score([(problem, SHORT)])
        assert scorer.row_tokens == width


def test_too_many_at_once_are_told_to_come_again():
    gate = Gate()
    with served(gate, requests=2) as (url, app):
        threads, found = in_threads(url, ["a", "b"])
        until(lambda: len(app.metrics.waiting) == 2)
        status, answer, headers = ask(url, "POST", "/score", {"problem": "c", "steps": ["s"]})
        assert (
            status == 429 and headers["retry-after"] == "1" and "2 requests are being answered" in str(answer)
        )
        assert ask(url, "GET", "/health")[0] == 200
        gate.open.set()
        for thread in threads:
            thread.join()
        assert [found[name][0] for name in "ab"] == [200, 200]
        assert ask(url, "POST", "/score", {"problem": "c", "steps": ["s"]})[0] == 200


def test_one_address_has_a_share_of_the_places_and_another_has_its_own():
    gate, body = Gate(), {"problem": "c", "steps": ["s"]}
    with served(gate, requests_each=2) as (url, app), connected(url) as client:
        threads, found = in_threads(url, ["a"])
        client.sendall(post("b")[:-1])  # a body that arrives has a place too
        until(lambda: len(app.metrics.waiting) == len(app.metrics.arriving) == 1)
        for _ in range(3):  # one that is refused takes no place
            status, answer, headers = ask(url, "POST", "/score", body)
            assert status == 429 and headers["retry-after"] == "1"
            assert (
                answer["error"]["message"]
                == "2 requests of 127.0.0.1 are being answered, its share; try later"
            )
        assert ask(url, "GET", "/health")[0] == 200
        gate.open.set()
        assert ask(url, "POST", "/score", body, source="127.0.0.2")[0] == 200
        threads[0].join()
        assert found["a"][0] == 200 and ask(url, "POST", "/score", body)[0] == 200
        client.sendall(post("b")[-1:])
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 OK")


def test_one_address_opens_so_many_connections_and_no_more():
    with served(Gate(), connections_each=2) as (url, app):
        with connected(url) as first, connected(url):
            for _ in range(3):
                answer = raw(url)
                assert answer.startswith("HTTP/1.1 429")
                assert "2 connections of 127.0.0.1 are open, its share; try later" in answer
            assert ask(url, "GET", "/health", source="127.0.0.2")[0] == 200
            first.close()
            until(lambda: ask(url, "GET", "/health")[0] == 200)
        assert app.metrics.requests["other", 429] >= 3


def test_addresses_of_one_ipv6_peer_share_a_share():
    """A peer chooses the last 64 bits itself, so that counted one by one they were no limit."""
    networks = [
        peer((host, 1)) for host in ("2001:db8::1", "2001:db8::ffff:1:2:3", "2001:db8:0:1::1", "fe80::1%eth0")
    ]
    assert networks == ["2001:db8::/64", "2001:db8::/64", "2001:db8:0:1::/64", "fe80::/64"]
    assert [peer((host, 1)) for host in ("127.0.0.1", "::ffff:127.0.0.2")] == ["127.0.0.1", "127.0.0.2"]
    assert peer(None) is None
    told = []
    with served(Gate(), requests_each=1) as (_, app):
        app.metrics.waiting.append("2001:db8::/64")
        for host in ("2001:db8::2", "2001:db8:0:1::2"):
            scope = {"type": "http", "client": (host, 1), "headers": [(b"content-type", b"application/json")]}
            with pytest.raises((Refused, InputError)) as refused:
                asyncio.run(app.body(Request(scope, body_of(b"no JSON"))))
            told.append(str(refused.value))
    assert told[0] == "1 requests of 2001:db8::/64 are being answered, its share; try later"
    assert told[1].startswith("the body: broken JSON")


def body_of(content):
    """What ASGI receives: all of the body at once."""

    async def receive():
        return {"type": "http.request", "body": content, "more_body": False}

    return receive


# What is wrong

STEPS = {"problem": PROBLEM, "steps": ["4+5=2"]}
DEEP = b'{"problem": ' + b"[" * 100_000 + b"]" * 100_000 + b', "steps": ["s"]}'
BAD = {
    # name: (method, path, body, headers), status, what the reason says
    "no body": (("POST", "/score", b"", JSON), 400, "the body: broken JSON"),
    "not JSON": (("POST", "/score", b"{'problem': 1}", JSON), 400, "the body: broken JSON (Expecting"),
    "cut short": (("POST", "/score", b'{"problem": "p", "st', JSON), 400, "the body: broken JSON"),
    "two values": (("POST", "/score", b"{}{}", JSON), 400, "the body: broken JSON (Extra data"),
    "not UTF-8": (("POST", "/score", b'{"problem": "\xff"}', JSON), 400, "the body: broken JSON ('utf-8'"),
    "NaN": (("POST", "/score", b'{"problem": NaN, "steps": ["s"]}', JSON), 400, "NaN is no number"),
    "Infinity": (("POST", "/score", b'{"problem": -Infinity}', JSON), 400, "-Infinity is no number"),
    "a long number": (("POST", "/score", b'{"problem": ' + b"9" * 9999 + b"}", JSON), 400, "the body: broken JSON"),
    "deep": (("POST", "/score", DEEP, JSON), 400, "the body: broken JSON ("),
    "deep objects": (("POST", "/pooling", b'{"a":' * 99_999 + b"1" + b"}" * 99_999, JSON), 400, "the body: broken JSON ("),
    "a list": (("POST", "/score", [STEPS], JSON), 400, "the body: got [{'problem'"),
    "a number": (("POST", "/score", 7, JSON), 400, "the body: got 7, expected a JSON object"),
    "null": (("POST", "/score", b"null", JSON), 400, "the body: got None, expected a JSON object"),
    "nothing in it": (("POST", "/score", {}, JSON), 400, "problem: got None, expected a text"),
    "unknown key": (("POST", "/score", STEPS | {"path": "/etc/passwd"}, JSON), 400, "unknown key: got 'path'"),
    "problem a number": (("POST", "/score", STEPS | {"problem": 4}, JSON), 400, "problem: got 4, expected a text"),
    "half a surrogate": (("POST", "/score", STEPS | {"problem": "\ud800"}, JSON), 400, "surrogates not allowed"),
    "steps a text": (("POST", "/score", STEPS | {"steps": "4+5=2"}, JSON), 400, "steps: got '4+5=2', expected a list"),
    "no steps": (("POST", "/score", STEPS | {"steps": []}, JSON), 400, "steps: got [], expected a list that is not empty"),
    "a step null": (("POST", "/score", STEPS | {"steps": ["a", None]}, JSON), 400, "steps[1]: got None, expected a text"),
    "a step a list": (("POST", "/score", STEPS | {"steps": [["a"]]}, JSON), 400, "steps[0]: got ['a'], expected a text"),
    "both forms": (("POST", "/score", STEPS | {"candidates": [["a"]]}, JSON), 400, "expected steps or candidates"),
    "candidates flat": (("POST", "/score", {"problem": "p", "candidates": ["a"]}, JSON), 400, "candidates[0]: got 'a'"),
    "problems flat": (("POST", "/score", {"problems": ["p"]}, JSON), 400, "problems[0]: got 'p', expected an object"),
    "problems of one": (("POST", "/score", {"problems": STEPS}, JSON), 400, "problems: got {'problem'"),
    "aggregator": (("POST", "/score", STEPS | {"aggregator": "../min"}, JSON), 400, "aggregator: got '../min', expected min,"),
    "aggregator a list": (("POST", "/score", STEPS | {"aggregator": ["min"]}, JSON), 400, "aggregator: got ['min']"),
    "too many steps": (("POST", "/score", STEPS | {"steps": ["a"] * 513}, JSON), 413, "steps: got '513 entries', expected at most 512"),
    "too many solutions": (("POST", "/score", {"problem": "p", "candidates": [["a"]] * 1025}, JSON), 413, "at most 1024"),
    "too many tokens": (("POST", "/score", STEPS | {"problem": "1" * 9000}, JSON), 413, "tokens, expected at most 8192"),
    "too many bytes": (("POST", "/score", STEPS | {"problem": "1" * 1_500_000}, JSON), 413, "expected at most 1048576"),
    "a text": (("POST", "/score", STEPS, {"Content-Type": "text/plain"}), 415, "content-type: got 'text/plain'"),
    "a long text": (("POST", "/score", b"x" * 3_000_000, {"Content-Type": "text/plain"}), 415, "content-type: got"),
    "long, to nowhere": (("POST", "/scores", b"x" * 3_000_000, JSON), 404, "POST '/scores': Not Found"),
    "a form": (("POST", "/score", b"problem=p", {"Content-Type": "application/x-www-form-urlencoded"}), 415, "content-type"),
    "no type": (("POST", "/score", STEPS, {}), 415, "content-type: got '', expected 'application/json'"),
    "another method": (("DELETE", "/score", None, {}), 405, "DELETE '/score': Method Not Allowed"),
    "no such path": (("GET", "/score/1", None, {}), 404, "GET '/score/1': Not Found"),
    "up the tree": (("GET", "/../../etc/passwd", None, {}), 404, "Not Found"),
    "up, encoded": (("GET", "/%2e%2e/%2e%2e/etc/passwd", None, {}), 404, "Not Found"),
    "up, twice": (("GET", "//etc/passwd", None, {}), 404, "Not Found"),
    "a zero byte": (("GET", "/health%00.html", None, {}), 404, "Not Found"),
    "pooling, no input": (("POST", "/pooling", {}, JSON), 400, "input: got None, expected a list that is not empty"),
    "pooling, wrong ids": (("POST", "/pooling", {"input": [[1, 320]]}, JSON), 400, "input[0]: got 320, expected token ids from 0 to 319"),
    "pooling, true": (("POST", "/pooling", {"input": [[1, True]]}, JSON), 400, "input[0]: got True"),
    "pooling, no step": (("POST", "/pooling", {"input": ["4?"]}, JSON), 400, "expected some with the step tag"),
    "pooling, long": (("POST", "/pooling", {"input": [[1] * 8193]}, JSON), 413, "input[0]: got '8193 entries'"),
    "pooling, task": (("POST", "/pooling", {"input": "4?\n", "task": "embed"}, JSON), 400, "task: got 'embed', expected token_classify"),
    "pooling, model": (("POST", "/pooling", {"input": "4?\n", "model": "../../run"}, JSON), 404, "model: got '../../run'"),
    "pooling, base64": (("POST", "/pooling", {"input": "4?\n", "encoding_format": "base64"}, JSON), 400, "encoding_format"),
    "pooling, chat": (("POST", "/pooling", {"messages": []}, JSON), 400, "messages: got 'a conversation'"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_request_gets_a_reason(address, name):
    request, status, why = BAD[name]
    got, answer, headers = ask(address, *request)
    assert got == status and why in answer["error"]["message"] and answer["error"]["code"] == status
    assert headers["content-type"] == "application/json" and "Traceback" not in str(answer)


def test_the_server_is_alive_after_all_of_them(address):
    assert ask(address, "POST", "/score", STEPS)[0] == 200


def test_what_is_no_http_gets_a_reason_and_slow_writers_are_cut(scorer):
    head = b"POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with served(scorer, seconds=0.3) as (url, _):
        for parts, status, why in (
            ((b"\x16\x03\x01\x02\x00\r\n\r\n",), 400, "Invalid HTTP request"),
            ((b"GET / HTTP/1.1\r\nHost: localhost\r\nx: " + b"y" * 100_000,), 431, "more than 16384 bytes"),
            ((b"",), 408, "the headers did not arrive within 0.3 s"),
            ((b"GET /health HT",), 408, "the headers did not arrive within 0.3 s"),
            (
                (head + b"Content-Length: 40\r\n\r\n", b'{"pro'),
                408,
                "the body did not arrive within 0.3 s: 5 bytes did",
            ),
            ((head + b"Transfer-Encoding: chunked\r\n\r\n", b"5\r\n"), 408, "the body did not arrive"),
            ((head + b"Transfer-Encoding: chunked\r\n\r\n", b"zz\r\n"), 400, ""),
        ):
            begun = time.monotonic()
            answer = raw(url, *parts)
            assert answer.startswith(f"HTTP/1.1 {status}") and why in answer and time.monotonic() - begun < 5
            assert json.loads(answer.split("\r\n\r\n", 1)[1])["error"]["type"] == "invalid_request_error"
        # A byte now and then is slow too; so is the second request of a connection.
        assert "the headers did not arrive" in raw(url, b"G", b"E", b"T", b" ", b"/", pause=0.08)
        both = raw(url, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET /health", pause=0.05)
        assert both.startswith("HTTP/1.1 200") and "HTTP/1.1 408" in both
        with contextlib.closing(socket.create_connection(url.removeprefix("http://").split(":"))) as client:
            client.sendall(head + b"Content-Length: 40\r\n\r\n{")  # and leaves
        assert ask(url, "POST", "/score", STEPS)[0] == 200


def test_long_headers_are_refused_in_one_piece_too(scorer):
    """What the protocol refuses before there is a request is counted as well."""
    with served(scorer, seconds=0.3) as (url, app):
        for head in (
            b"GET /health HTTP/1.1\r\nHost: localhost\r\nx: " + b"y" * 70_000,
            b"GET /health HTTP/1.1\r\nHost: localhost" + b"\r\nx: y" * 5000,
            b"GET /health?" + b"y" * 60_000 + b" HTTP/1.1\r\nHost: localhost",
            b"GET /" + b"y" * 60_000 + b" HTTP/1.1\r\nHost: localhost",
        ):
            answer = raw(url, head + b"\r\n\r\n")
            assert answer.startswith("HTTP/1.1 431") and "the headers have more than 16384 bytes" in answer
        answer = raw(url, b"GET / HTTP/1.1\r\nx: ", b"y" * 20_000, pause=0.05)
        assert answer.startswith("HTTP/1.1 431") and "the headers have more than 16384 bytes" in answer
        raw(url, b"GET")
        raw(url, b"nonsense\r\n\r\n")
        counts = app.metrics.requests
        assert counts["other", 408] == counts["other", 400] == 1
        assert sum(n for (_, status), n in counts.items() if status == 431) == 5


@pytest.mark.parametrize(
    ("host", "more"),
    [
        ("127.0.0.1", []),
        ("prm.example", ["PRM.example:8000"]),
        ("0.0.0.0", ["192.168.1.5:8000", "[fe80::1]"]),
    ],
)
def test_without_a_token_a_page_of_another_site_cannot_ask(scorer, host, more):
    """A page can give its own name this machine's address."""
    local = ["localhost:8000", "127.0.0.1", "127.1.2.3:80", "[::1]:8000", socket.gethostname(), *more]
    strange = ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "[", "", "8.8.8.8.", "a b"]
    with served(scorer, host=host) as (url, _):
        for name in local + strange:
            for asked in (("GET", "/health"), ("GET", "/"), ("POST", "/score", STEPS), ("GET", "/none")):
                status, answer, _ = ask(url, *asked, headers=JSON | {"Host": name})
                assert (status == 421) == (name in strange), (name, asked)
                assert (
                    status != 421 or f"Host: got {name!r}, expected localhost" in answer["error"]["message"]
                )
    with served(scorer, host=host, token="secret") as (url, _):
        headers = JSON | {"Authorization": "Bearer secret", "Host": "evil.example"}
        assert ask(url, "POST", "/score", STEPS, headers)[0] == 200


def test_who_does_not_read_the_answer_is_cut():
    """An answer of 8.6 MB, which no buffer of the system takes."""
    gate, steps = Gate(), [""] * 500
    gate.open.set()
    body = json.dumps({"problem": "p", "candidates": [steps] * 680}, separators=(",", ":")).encode()
    with served(gate, seconds=0.3) as (url, app), socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, port = url.removeprefix("http://").split(":")
        client.connect((host, int(port)))
        head = f"POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        until(lambda: app.metrics.requests["/score", 200] == 1)
        time.sleep(0.5)
        received = 0
        with contextlib.suppress(ConnectionResetError):
            while part := client.recv(1 << 20):
                received += len(part)
    assert received < 6_000_000


def test_a_token_is_asked_for_where_there_is_one(scorer):
    with served(scorer, token="secret") as (url, _):
        for given, status in (
            ("", 401),
            ("Bearer", 401),
            ("Bearer secre", 401),
            ("Bearer sécret", 401),
            ("Bearer secret", 200),
        ):
            headers = JSON | {"Authorization": given.encode()}
            assert ask(url, "POST", "/score", STEPS, headers)[0] == status
        assert (
            ask(url, "GET", "/metrics")[0] == 401
            and ask(url, "GET", "/health")[0] == ask(url, "GET", "/")[0] == 200
        )


# The command


@pytest.mark.slow
def test_sigterm_finishes_what_was_accepted(tmp_path):
    """A request whose body is still on its way when the signal comes; a new connection is refused. The server was killed
    before and started again by the same command, so at the same port and in the same folder."""
    with command.listen("127.0.0.1", 0) as listener:
        asked = ["checkpoint=random", f"port={listener.getsockname()[1]}", f"hydra.run.dir={tmp_path}/run"]
    process = start("prm_jax/serve/__main__.py", *asked, cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert process.stdout.readline() == "verifier    random\n"
    process.kill()
    process.communicate()
    process = start("prm_jax/serve/__main__.py", *asked, cwd=tmp_path, PYTHONPATH=str(ROOT))
    try:
        assert process.stdout.readline() == "verifier    random\n"
        url = process.stdout.readline().split()[1]
        host, port = url.removeprefix("http://").split(":")
        body = json.dumps({"problem": "p", "steps": ["s"]}).encode()
        with socket.create_connection((host, int(port)), timeout=20) as client:
            head = f"POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            client.sendall(head.encode() + body[:5])
            until(lambda: "requests_arriving 1" in ask(url, "GET", "/metrics")[1])
            process.send_signal(signal.SIGTERM)

            def refuses():
                with contextlib.suppress(ConnectionRefusedError):
                    socket.create_connection((host, int(port)), timeout=5).close()
                    return False
                return True

            until(refuses)
            client.sendall(body[5:])
            assert b"HTTP/1.1 200 OK" in client.recv(1 << 16)
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 0 and out.endswith(" 1 steps scored\n") and "Traceback" not in err
    requests = json.loads((tmp_path / "run" / "results.json").read_text())["requests"]
    assert requests.pop("/metrics 200") >= 1 and requests == {"/score 200": 1}


def test_what_the_command_cannot_do_it_says_in_one_line(monkeypatch, tmp_path):
    folder = f"hydra.run.dir={tmp_path}/a"
    said = lambda *asked: call(command.main, monkeypatch, "serve", *asked, folder)
    with command.listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert said(f"port={port}").startswith(f"error: host, port: cannot listen at 127.0.0.1:{port} (")
    assert said("port=0", "checkpoint=embedded").startswith("error: ") and "objective=lm" in said(
        "port=0", "checkpoint=embedded"
    )
    assert said("port=0", "checkpoint=none/such").startswith("error: none/such")
    assert said("aggregator=best").startswith("error: aggregator: got 'best', expected min, ")
    assert said("limits.tokens=0") == "error: limits.tokens: got 0, expected at least 1"
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "prm_jax.serve.app")
    assert said() == "error: the server needs the package uvicorn: pip install starlette uvicorn"
    assert not (tmp_path / "a" / ".hydra").exists()


# Beside vLLM


@pytest.fixture
def solutions(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [{"prompt": PROBLEM, "completions": list(steps)} for steps in (RIGHT, WRONG, SHORT)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_comparison_with_a_server_of_poolings_shape(address, solutions, monkeypatch, tmp_path):
    asked = ["checkpoint=embedded_orm", f"input={solutions}", f"url={address}"]
    out = printed(compare.main, monkeypatch, *asked, f"hydra.run.dir={tmp_path}/a", cwd=tmp_path)
    got = json.loads((tmp_path / "a" / "results.json").read_text())
    assert (got["solutions"], got["steps"], got["same_weakest_step"]) == (3, 5, 1.0) and got[
        "largest_difference"
    ] < 1e-6
    assert "compared    3 solutions, 5 steps of embedded_orm, ours in float32" in out

    real = compare.server_scores
    worse = lambda *args: [score_T - 0.125 * (t == 1) for t, score_T in enumerate(real(*args))]
    monkeypatch.setattr(compare, "server_scores", worse)
    printed(compare.main, monkeypatch, *asked, f"hydra.run.dir={tmp_path}/b", cwd=tmp_path)
    got = json.loads((tmp_path / "b" / "results.json").read_text())
    assert (got["largest_difference"], got["mean_difference"]) == pytest.approx((0.125, 0.05), abs=1e-6)
    assert got["at"]["id"] == "rows.jsonl:2"

    said = lambda *more: call(
        compare.main, monkeypatch, "compare", *asked, *more, f"hydra.run.dir={tmp_path}/c"
    )
    assert said("served_as=other").startswith(
        f"error: {address}: status 404: "
    ) and "model: got 'other'" in said("served_as=other")
    assert said("url=http://127.0.0.1:9").startswith("error: http://127.0.0.1:9: no answer of /pooling (")


def test_solutions_of_a_pool_are_compared_too(tmp_path):
    pool = {
        "id": "7",
        "problem": PROBLEM,
        "answer": "6",
        "candidates": [{"steps": list(s)} for s in (RIGHT, SHORT)],
    }
    (tmp_path / "pool.jsonl").write_text(json.dumps(pool) + "\n")
    found = compare.read_solutions(str(tmp_path / "pool.jsonl"), 9)
    assert found == [("7/0", PROBLEM, RIGHT), ("7/1", PROBLEM, SHORT)]
    assert compare.read_solutions(str(tmp_path / "pool.jsonl"), 1) == found[:1]


def test_a_servers_scores_are_found_at_the_steps():
    """Tokens 5 7 9 5 7: the tag 7 stands behind the one step and in its text."""
    encoded = Encoded(np.array([5, 7, 9, 5, 7]), np.array([4]), 1)
    of_all, of_tags = np.array([[0.1], [0.2], [0.3], [0.4], [0.5]]), np.array([[0.2], [0.5]])
    assert compare.at_steps(of_all, encoded, 7, "it") == compare.at_steps(of_tags, encoded, 7, "it") == 0.5
    assert compare.at_steps(np.hstack([1 - of_tags, of_tags]), encoded, 7, "it") == 0.5
    assert compare.at_steps(np.array([[0.9, 0, 0.1], [0.25, 0.5, 0.25]]), encoded, 7, "it") == 0.75
    assert compare.at_steps(np.array([0.625]), encoded, None, "it") == 0.625  # an outcome model's
    with pytest.raises(
        InputError,
        match=r"it: the server gave an array of shape \(3, 1\), expected 2 or 5 rows of 1 to 3 classes",
    ):
        compare.at_steps(of_all[:3], encoded, 7, "it")
    with pytest.raises(InputError, match="expected probabilities: use_activation is off there"):
        compare.at_steps(of_tags * 7, encoded, 7, "it")


# The page


def test_the_page_shows_steps_and_marks_the_weakest(chromium, address, scorer):
    find = lambda name: chromium.find_element("id", name)
    chromium.get_log("performance")
    chromium.get(address)
    until(lambda: "embedded_orm: orm" in find("about").text)
    steps = ("4+5=3", "<img src=x onerror=alert(1)>", "3*3=2")
    find("send").click()  # the example: it is ranked, in the order of its aggregated scores
    until(lambda: find("result").is_displayed())
    example = [find(f"solution-{n}").get_attribute("value").split("\n") for n in (1, 2, 3)]
    scored = scorer.score([(find("problem").get_attribute("value"), tuple(solution)) for solution in example])
    order = np.argsort([-logit_T.min() for logit_T in scored], kind="stable") + 1
    titles = [x.text for x in find("scored").find_elements("css selector", "h2")]
    assert titles == [f"{place}. Solution {n}" for place, n in enumerate(order, 1)]
    assert find("says").text == f"Solution {order[0]} ranks first of 3."

    for name, text in (
        ("problem", PROBLEM),
        ("solution-1", "\n\n".join(steps)),
        ("solution-2", ""),
        ("solution-3", ""),
    ):
        find(name).clear()
        find(name).send_keys(text)
    find("send").click()
    until(lambda: len(find("scored").find_elements("css selector", "article")) == 1)
    logit_T = scorer.score([(PROBLEM, steps)])[0]
    items = find("scored").find_elements("css selector", "li")
    values = [float(item.find_element("css selector", "data").get_attribute("value")) for item in items]
    np.testing.assert_allclose(values, probability(logit_T), atol=1e-6)
    assert [item.find_element("css selector", ".step").text for item in items] == list(steps)
    weakest = int(logit_T.argmin())
    assert ["weakest" in item.text for item in items] == [t == weakest for t in range(3)]
    assert "1. Solution 1\nmin: log score -" in find("scored").text
    assert find("unit").text == "Beside a step: the probability that the answer will be right, read there."
    shades = [item.value_of_css_property("border-left-color") for item in items]
    assert ["(0, 114, 178" in shade for shade in shades] == [p >= 0.5 for p in values]

    find("solution-1").clear()
    find("solution-1").send_keys("a\n" * 513)
    find("more").click()
    find("send").click()
    until(lambda: find("error").text)
    assert (
        find("error").text == "candidates[0]: got '513 entries', expected at most 512"
        and not find("result").is_displayed()
    )
    chromium.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 320, "height": 800, "deviceScaleFactor": 1, "mobile": True},
    )
    assert chromium.execute_script("return document.documentElement.scrollWidth") <= 320
    chromium.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    named = [
        x.accessible_name for x in chromium.find_elements("css selector", "button, select, input, textarea")
    ]
    solutions = [f"Solution {n}" for n in (1, 2, 3, 4)]
    buttons = ["Score and rank", "Another solution"]
    assert named == ["Problem", *solutions, "A step is", "Aggregate", "Token, if asked for", *buttons]
    assert [row for row in chromium.get_log("browser") if "413" not in row["message"]] == []
    messages = [json.loads(row["message"])["message"] for row in chromium.get_log("performance")]
    urls = {m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"}
    assert {url for url in urls if url.startswith("http")} == {
        f"{address}/",
        f"{address}/health",
        f"{address}/score",
    }
