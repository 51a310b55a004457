"""Policies and judges behind a server: a stub that obeys a script."""

import dataclasses
import http.server
import json
import threading
import time
import types

import jax
import numpy as np
import pytest
from conftest import call, printed
from tokenizers.processors import TemplateProcessing

import evaluate
from prm_jax import InputError
from prm_jax.checkpoints.names import OpenOptions, open_verifier
from prm_jax.checkpoints.tokenizer import train_tokenizer
from prm_jax.formats import read_format
from prm_jax.generate import pools, sampling
from prm_jax.generate import samples as lab
from prm_jax.generate.policies import Sampling, Served, Server
from prm_jax.generate.remote import RemotePolicy, seeds

PLAIN, ANY = read_format("plain"), Sampling(1.0, None, 1.0, 60)
KEY = jax.random.key(0)


def answer(text="7\n", finish="stop", tokens=3, **more):
    choice = {"text": text, "index": 0, "finish_reason": finish, **more}
    return {"choices": [choice], "usage": {"completion_tokens": tokens}}


@pytest.fixture
def stub():
    """A server that answers the next completion with what stands in `script`, (status, JSON or bytes), or
    else with `answer()`."""
    lock = threading.Lock()
    state = types.SimpleNamespace(
        models=(200, {"data": [{"id": "m", "owned_by": "vllm"}]}), script=[], bodies=[]
    )
    state.now, state.most, state.delay, state.listed = 0, 0, 0.0, 0

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def give(self, status, body):
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.send_header("retry-after-ms", "1")
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self):
            state.key = self.headers["Authorization"]
            state.listed += self.path == "/v1/models"
            self.give(*(state.models if self.path == "/v1/models" else (404, {"detail": "Not Found"})))

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                state.bodies.append(body)
                state.now += 1
                state.most = max(state.most, state.now)
                entry = state.script.pop(0) if state.script else (200, answer())
            time.sleep(state.delay)
            with lock:
                state.now -= 1
            self.give(*entry)

    server = http.server.ThreadingHTTPServer(("localhost", 0), Handler)
    state.url = f"http://localhost:{server.server_port}"
    few = {"retries": 2, "timeout": 5.0, "concurrency": 1}
    state.policy = lambda law=ANY, fmt=PLAIN, **more: RemotePolicy(
        state.url, fmt, law, server=Server(**few | more)
    )
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield state
    server.shutdown()


def test_a_request_that_fails_is_repeated_with_the_same_seed(stub):
    stub.script = [(500, {"detail": "boom"}), (429, {})]
    stub.script += [(200, answer("5\n6\n", tokens=5)), (200, answer("8"))]
    policy = stub.policy()
    ((one, two),) = policy.extend([("4?", ())], 2, "end", KEY)
    assert (one.text, len(one.ids_L), two.text) == ("5\n6\n", 5, "8") and policy.stats.tokens == 8
    assert [b["seed"] for b in stub.bodies] == [stub.bodies[0]["seed"]] * 3 + [stub.bodies[3]["seed"]]
    assert stub.bodies[0]["seed"] != stub.bodies[3]["seed"]


@pytest.mark.parametrize(
    "reply", [(500, {"detail": "boom"}), (200, b'{"choices": [{"text": "7'), (200, answer(finish="abort"))]
)
def test_what_fails_for_good_is_an_error_in_one_line_and_no_sample(stub, reply):
    stub.script = [reply] * 9
    policy = stub.policy()
    with pytest.raises(InputError, match=f"^{stub.url}: no completion of '4[?]3[+]4=0.n': .*") as caught:
        policy.extend([("4?", ("3+4=0",)), ("5?", ())], 2, "step", KEY)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400
    assert len(stub.bodies) <= 6 and policy.stats.tokens == policy.stats.continuations == 0


def test_every_sample_has_a_seed_of_its_own_and_half_a_character_is_mended(stub):
    stub.script = [(200, answer("a\ud800b\U0001f600\udc00"))]
    found = stub.policy().extend([("4?", ()), ("5?", ())], 3, "end", KEY, numbers=[7, 8])
    assert found[0][0].text == "a\ufffdb\U0001f600\ufffd"
    assert [b["prompt"] for b in stub.bodies] == ["4?"] * 3 + ["5?"] * 3
    drawn = [b["seed"] for b in stub.bodies]
    assert drawn == seeds(KEY, np.repeat([7, 8], 3), np.tile(np.arange(3), 2)).tolist()
    assert len(set(drawn)) == 6 and min(drawn) >= 0 and max(drawn) < 2**31


def test_vllm_is_told_the_whole_law_and_tells_ids_and_what_stopped_it(stub):
    known = {"token_ids": [5, 6], "logprobs": {"tokens": ["1+2", "=3"], "token_logprobs": [-0.5, -0.25]}}
    stub.script = [
        (200, answer("1+2=3", tokens=2, stop_reason="\n", **known)),
        (200, answer("7", stop_reason=None)),
        (200, answer("7", stop_reason=151645)),
        (200, answer("1+2", "length", stop_reason=None)),
    ]
    policy = stub.policy(dataclasses.replace(ANY, top_k=20, top_p=0.9))
    ((step, *rest),) = policy.extend([("1 +2?", ("0+1=1",))], 4, "step", KEY)
    assert (step.text, step.finish_reason) == ("1+2=3\n", "stop")
    assert step.ids_L.tolist() == [5, 6] and step.logp_L.tolist() == [-0.5, -0.25]
    assert [(c.text, c.finish_reason) for c in rest] == [("7", "eos"), ("7", "eos"), ("1+2", "length")]
    law = {"max_tokens": 60, "temperature": 1.0, "top_p": 0.9, "top_k": 20, "min_p": 0.0}
    law |= {"repetition_penalty": 1.0, "logprobs": 0, "return_token_ids": True}
    sent = {"model": "m", "prompt": "1 +2?0+1=1\n", "seed": 0, "stop": ["\n"]} | law
    assert stub.bodies[0] | {"seed": 0} == sent
    stub.script = [
        (200, answer("7\n", tokens=2, **known | {"logprobs": known["logprobs"] | {"tokens": ["7", "\n"]}}))
    ]
    ((whole,),) = policy.extend([("1 +2?", ())], 1, "end", KEY)
    assert whole.logp_T == (-0.75,)


def test_a_chat_template_writes_the_prompts_of_a_server(stub, tmp_path):
    """Its tokenizer is the key's, or that of the served folder; a base model's prompt is the problem."""
    tokenizer = train_tokenizer(["4 + 3"], 280)
    tokenizer.add_special_tokens({"bos_token": "<s>", "additional_special_tokens": ["<end>"]})
    turns = "{% for m in messages %}[{{ m.role }}]{{ m.content }}<end>{% endfor %}"
    tokenizer.chat_template = "<s>" + turns + "{% if add_generation_prompt %}[assistant]{% endif %}"
    begin = [("<s>", tokenizer.bos_token_id)]
    own = tokenizer.backend_tokenizer
    own.post_processor = TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=begin)
    tokenizer.save_pretrained(tmp_path)
    end = tokenizer.convert_tokens_to_ids("<end>")
    prefixes = [("4?", ()), ("4?", ("3+4=0",))]
    law = dataclasses.replace(ANY, top_k=3)
    stub.policy(law, tokenizer=str(tmp_path)).extend(prefixes, 1, "end", KEY)
    begun = "[user]4?<end>[assistant]"
    assert [b["prompt"] for b in stub.bodies] == [begun, f"{begun}3+4=0\n"]
    assert stub.bodies[0]["stop_token_ids"] == [end]
    stub.models = 200, {"data": [{"id": str(tmp_path), "owned_by": "vllm"}]}
    assert stub.policy().prompt("4?") == "[user]4?<end>[assistant]"
    assert stub.policy(fmt=read_format("plain", chat=False)).prompt("4?") == "4?"
    own.post_processor = TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
    tokenizer.save_pretrained(tmp_path)  # as SmolLM2's, which leaves its beginning to the template
    assert stub.policy().prompt("4?") == "<s>[user]4?<end>[assistant]"
    stub.models = 200, {"data": [{"id": "m", "owned_by": "vllm"}]}
    for key, wrong in (
        ("format.chat", {"fmt": read_format("plain", chat=True)}),
        ("server.tokenizer", {"tokenizer": "./none"}),
    ):
        with pytest.raises(InputError, match=f"^{key}: "):
            stub.policy(**wrong)


def test_a_blank_line_of_a_server_is_no_step(stub):
    blank, step = {"stop_reason": "\n", "tokens": 1}, {"stop_reason": "\n", "tokens": 4}
    stub.script = [(200, answer("", **blank)), (200, answer("3+4=7", **step))]
    ((found,),) = stub.policy().extend([("4?", ("1",))], 1, "step", KEY)
    assert (found.text, found.finish_reason, len(found.ids_L)) == ("\n3+4=7\n", "stop", 5)
    assert [(b["prompt"], b["max_tokens"]) for b in stub.bodies] == [("4?1\n", 60), ("4?1\n\n", 59)]
    stub.script = [(200, answer("", **blank))] * 20
    assert stub.policy().extend([("4?", ())], 1, "step", KEY)[0][0].finish_reason == "length"


def test_sglang_names_what_stopped_it_and_gives_log_probabilities_of_the_tempered_law(stub):
    stub.models = 200, {"data": [{"id": "m", "owned_by": "sglang"}]}
    stub.script = [(200, answer("1+2=3", matched_stop="\n")), (200, answer("7", matched_stop=151645))]
    found = stub.policy(dataclasses.replace(ANY, temperature=0.5)).extend([("1?", ())], 2, "step", KEY)
    assert [(c.text, c.finish_reason) for c in found[0]] == [("1+2=3\n", "stop"), ("7", "eos")]
    assert stub.bodies[0]["top_k"] == -1 and "logprobs" not in stub.bodies[0]
    stub.policy().extend([("1?", ())], 1, "end", KEY)
    assert stub.bodies[-1]["logprobs"] == 0 and "stop" not in stub.bodies[-1]


def test_a_server_that_does_not_say_what_stopped_it_is_refused_steps(stub):
    stub.models = 200, {"data": [{"id": "m", "owned_by": "someone"}]}
    stub.script = [(200, answer("1+2=3\n\nmore", tokens=9)), (200, answer("1+2", "length"))]
    found = stub.policy().extend([("1?", ())], 2, "step", KEY)[0]
    assert [(c.text, c.finish_reason) for c in found] == [("1+2=3\n", "stop"), ("1+2", "length")]
    stub.script = [(200, answer("1+2=3"))]
    with pytest.raises(InputError, match="matched_stop"):
        stub.policy().extend([("1?", ())], 1, "step", KEY)
    assert stub.policy().extend([("1?", ())], 1, "end", KEY)[0][0].finish_reason == "eos"
    with pytest.raises(InputError, match="^sampling.top_k: "):
        stub.policy(dataclasses.replace(ANY, top_k=9))


def test_model_and_key(stub, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    policy = stub.policy(model="m")
    assert policy.model == Served("m", "vllm") and policy.name == f"m at {stub.url}"
    assert stub.key == "Bearer secret"
    assert sampling.fingerprint(policy.model) == "not known: served as m by vllm"
    stub.models = 200, {"data": [{"id": "a", "owned_by": "x"}, {"id": "b", "owned_by": "x"}]}
    for wrong in ({}, {"model": "x"}):
        with pytest.raises(InputError, match="^server.model: .*'a', 'b'"):
            stub.policy(**wrong)
    for models in ((401, {"error": {"message": "wrong key"}}), (200, {"data": 5})):
        stub.models = models
        with pytest.raises(InputError, match=f"^{stub.url}: no server of the completions protocol"):
            stub.policy(model="m")


def test_where_there_is_no_server_one_line_says_so(monkeypatch, tmp_path):
    problems = tmp_path / "problems.jsonl"
    problems.write_text('{"problem": "4?"}\n')
    asked = [f"input={problems}", "server.retries=0", f"hydra.run.dir={tmp_path}/a"]
    said = call(pools.main, monkeypatch, "sampling", "checkpoint=http://localhost:9", *asked)
    assert said.startswith("error: http://localhost:9: ")
    with pytest.raises(InputError, match="^data.policy: "):  # samples are kept by weights
        lab.open_lab_policy("http://localhost:9", 1.0, 60)


# Critics and judges


def echo(token, logp):
    """What is said of a prompt that is sent back with the log-probabilities of its tokens."""
    logprobs = {"tokens": ["x", token], "token_logprobs": [None, logp]}
    choice = {"text": "", "finish_reason": "length", "logprobs": logprobs}
    return {"choices": [choice], "usage": {"completion_tokens": 0}}


JUDGE = dataclasses.replace(read_format("judge"), chat=False)
JUDGE = dataclasses.replace(JUDGE, critic=JUDGE.critic | {"max_tokens": 60})


@pytest.fixture
def judge(stub):
    """JUDGE behind the stub, which is asked for one thing at a time."""

    def opened(fmt=JUDGE, **more):
        fmt = dataclasses.replace(fmt, critic=fmt.critic | more)
        critic = open_verifier(stub.url, OpenOptions(format=fmt))
        critic.policy.server = Server(concurrency=1)
        return critic

    return opened


def test_a_judge_behind_a_server_writes_and_its_verdict_is_exact(stub, judge, capsys):
    stub.script = [
        (200, answer("It is 7.\nVerdict: Yes", tokens=9)),
        (200, answer("Hm, 8", "length", tokens=60)),
    ]
    stub.script += [(200, echo(" Yes", -0.25)), (200, echo(" No", -2.25))] * 2
    critic = judge(votes=2)
    assert critic.score([("3 +4?", ("3+4=7",))])[0].tolist() == pytest.approx([2.0])
    assert critic.name == f"m at {stub.url}, judge, 2 votes" and critic.stats.tokens == 69
    assert "came to no verdict" in capsys.readouterr().out
    first, second, good, bad, *forced = stub.bodies
    assert first["prompt"] == second["prompt"] and first["seed"] != second["seed"]
    assert [b["prompt"] for b in forced] == [first["prompt"] + f"Hm, 8\nVerdict:{x}" for x in (" Yes", " No")]
    prompt = first["prompt"] + "It is 7.\nVerdict: "
    alike = {"model": "m", "echo": True, "max_tokens": 0, "logprobs": 0, "temperature": 1.0}
    assert (good, bad) == (alike | {"prompt": prompt + "Yes"}, alike | {"prompt": prompt + "No"})


def test_asked_at_once_a_judge_is_asked_for_two_log_probabilities_alone(stub, judge):
    stub.script = [(200, echo(" Yes", -3.0)), (200, echo(" No", -1.0))]
    assert judge(max_tokens=0, force="Verdict:").score([("3 +4?", ("3+4=7",))])[0].tolist() == [-2.0]
    assert [b["prompt"][-13:] for b in stub.bodies] == ["\nVerdict: Yes", ".\nVerdict: No"]


def test_the_turns_of_a_critic_behind_a_server_are_its_tokenizers_and_begin_once(stub, judge):
    critic = judge(dataclasses.replace(JUDGE, chat=True))
    turns = lambda messages, **_: "<s>[" + "][".join(m["role"] for m in messages) + "]"
    critic.tokenizer, critic.bos = types.SimpleNamespace(apply_chat_template=turns), "<s>"
    stub.script = [(200, answer("Verdict: No")), (200, echo(" Yes", -2.0)), (200, echo(" No", -1.0))]
    assert critic.score([("3 +4?", ("3+4=7",))])[0].tolist() == [-1.0]
    assert [b["prompt"] for b in stub.bodies] == ["[user]", "[user]Verdict: Yes", "[user]Verdict: No"]


def test_evaluations_take_a_judge_by_its_address(stub, monkeypatch, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "3 +4?", "completions": ["3+4=7", "7"], "id": "a"}\n')
    stub.script = [(200, answer("Verdict: No"))] * 2
    stub.script += [(200, echo(" Yes", -2.0))] * 2 + [(200, echo(" No", -1.0))] * 2
    asked = ["task=score", f"checkpoint={stub.url}", "format=judge", "format.chat=false", f"input={rows}"]
    find = RemotePolicy.__post_init__

    def with_one_thread(policy):
        find(policy)
        policy.server = Server(concurrency=1)

    monkeypatch.setattr(RemotePolicy, "__post_init__", with_one_thread)
    printed(evaluate.main, monkeypatch, *asked, f"hydra.run.dir={tmp_path}/run", cwd=tmp_path)
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["verifier"] == f"m at {stub.url}, judge, 1 vote" and results["critic"]["critiques"] == 2
    (scored,) = map(json.loads, (tmp_path / "run" / "scores.jsonl").read_text().splitlines())
    assert scored["scores"] == [-1.0, -1.0] and scored["unit"] == "logit"
