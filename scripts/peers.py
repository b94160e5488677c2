"""How the programs that scripts/compare_peers.py compares are run: one class each, one method for each kind of work.

Rates are tokens a second, total times seconds. A method that a program lacks raises NotAvailable with the reason, which stands in the
table. What exactly each side does is written in docs/benchmarks.md, under "Beside other engines".
"""
import concurrent.futures
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PEERS = os.path.join(ROOT, "build-peers")
LLAMA = os.path.join(PEERS, "llama.cpp-native", "bin")  # limit_instructions chooses the build
OURS = os.path.join(ROOT, "build-dev", "benchmarks")
RUN_LIMIT_S = 1200
START_LIMIT_S = 60  # of llama-server
END_LIMIT_S = 30    # of what was asked to end


def limit_instructions(isa):
    """Lets every program started from now on use no more than `isa`; "native": all that the machine has."""
    global LLAMA  # pylint: disable=global-statement
    LLAMA = os.path.join(PEERS, f"llama.cpp-{isa}", "bin")
    if isa != "native":
        os.environ["QUIRE_CPU_ISA"] = isa
        os.environ["ONEDNN_MAX_CPU_ISA"] = isa.upper()  # what OpenVINO's kernels ask for what there is


class NotAvailable(Exception):
    """This program cannot do this work; the text says why."""


class Ended(RuntimeError):
    """A process that should have lived has ended, with this status."""

    def __init__(self, message, returncode):
        super().__init__(message)
        self.returncode = returncode


def run(command, **options):
    """Standard output of a command that must succeed."""
    program = os.path.basename(command[0])
    try:
        result = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=RUN_LIMIT_S, check=False, **options)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{program} did not end within {RUN_LIMIT_S} s") from None
    if result.returncode != 0:
        raise RuntimeError(f"{program} {ending(result.returncode)}: {result.stderr.strip()[-500:]}")
    return result.stdout


def ending(returncode):
    return f"was ended by signal {-returncode}" if returncode < 0 else f"ended with status {returncode}"


def stop(process):
    """Ends a process that may not want to."""
    process.terminate()
    try:
        process.wait(timeout=END_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def last_json(text):
    """The JSON object in the last line of a program's output."""
    lines = text.strip().splitlines()
    if not lines:
        raise RuntimeError("a program ended well and printed nothing")
    try:
        report = json.loads(lines[-1])
    except ValueError:
        report = None
    if not isinstance(report, dict):
        raise RuntimeError(f"a program ended well, and its last line is no JSON object: {lines[-1][:200]}")
    return report


class Quire:
    name = "quire"

    def __init__(self, model, threads):
        self.model, self.threads = model, threads
        self.version = ""

    def _bench(self, *arguments):
        command = [os.path.join(OURS, "throughput_bench"), "--model", self.model, "--threads", str(self.threads), "--repeat", "1"]
        report = last_json(run(command + [str(a) for a in arguments]))
        self.version = f"{report['revision']} ({report['isa']})"
        return report

    def prefill(self, tokens, seed):
        report = self._bench("--lock-step", 1, "--prompt-tokens", tokens, "--output-tokens", 2, "--seed", seed)
        return report["rows"][0]["s_pp"]["median"]

    def decode(self, streams, context, output_tokens, seed):
        report = self._bench("--lock-step", streams, "--prompt-tokens", context, "--output-tokens", output_tokens, "--seed", seed)
        return report["rows"][0]["s_tg"]["median"]

    def shared(self, streams, prompt_tokens, prefix, output_tokens, seed):
        report = self._bench("--prompts", streams, "--concurrency", streams, "--prompt-tokens", prompt_tokens, "--shared-prefix",
                             prefix, "--output-tokens", output_tokens, "--seed", seed, "--kv-megabytes", 2000)
        return report["seconds"]["median"]

    def serve_target(self):
        """Where serve_bench sends its load."""
        return ["--model", self.model, "--threads", str(self.threads)]

    def served_by(self, report):
        """`report` is serve_bench's, of a load on serve_target()."""
        self.version = f"{report['revision']} ({report['isa']})"

    def close(self):
        pass


class LlamaCpp:
    name = "llama.cpp"

    def __init__(self, model, threads):
        self.model, self.threads = model, threads
        self.version = "the sources in llama-cpp-python " + os.environ.get("QUIRE_LLAMA_VERSION", "of unknown version")
        self.server = None

    def prefill(self, tokens, seed):
        del seed  # llama-bench draws its own tokens
        rows = json.loads(run([os.path.join(LLAMA, "llama-bench"), "-m", self.model, "-t", str(self.threads), "-p", str(tokens),
                               "-n", "0", "-r", "1", "-o", "json"]))
        return rows[0]["avg_ts"]

    def decode(self, streams, context, output_tokens, seed):
        del seed
        # With -pps one prompt is computed and its KV copied to every stream: decoding reads as much memory as with prompts of
        # their own, and the comparison does not wait for prompts that it does not measure.
        cells = streams * (context + output_tokens) + 512
        output = run([os.path.join(LLAMA, "llama-batched-bench"), "-m", self.model, "-t", str(self.threads), "-c", str(cells),
                      "-b", "2048", "-ub", "512", "-npp", str(context), "-ntg", str(output_tokens), "-npl", str(streams), "-pps",
                      "--output-format", "jsonl"])
        rows = [last_json(line) for line in output.splitlines() if line.startswith("{")]
        if len(rows) != 1 or rows[0]["pl"] != streams or rows[0]["tg"] != output_tokens:
            raise RuntimeError(f"llama-batched-bench printed {rows}")
        return rows[0]["speed_tg"]

    def _start(self, slots, context):
        """A fresh server, so that it has no prompt cached; `context` tokens for each slot."""
        self.close()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.server = subprocess.Popen(
            [os.path.join(LLAMA, "llama-server"), "-m", self.model, "-t", str(self.threads), "-np", str(slots), "-c",
             str(slots * context), "--host", "127.0.0.1", "--port", str(port)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        url = f"http://127.0.0.1:{port}"
        start = time.monotonic()
        while time.monotonic() - start < START_LIMIT_S:  # a request to a server that hangs takes seconds too
            if self.server.poll() is not None:
                raise RuntimeError(f"llama-server {ending(self.server.returncode)} before it was ready")
            try:
                with urllib.request.urlopen(url + "/health", timeout=min(5, START_LIMIT_S)):
                    return url
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        raise RuntimeError(f"llama-server was not ready within {START_LIMIT_S} s")

    def shared(self, streams, prompt_tokens, prefix, output_tokens, seed):
        draw = random.Random(seed)
        ids = lambda count: [draw.randint(100, 40_000) for _ in range(count)]
        warmup, shared = ids(32), ids(prefix)
        prompts = [shared + ids(prompt_tokens - prefix) for _ in range(streams)]
        try:
            url = self._start(streams, prompt_tokens + output_tokens + 64)
            post_completion(url, warmup, 8)
            start = time.perf_counter()
            with concurrent.futures.ThreadPoolExecutor(streams) as pool:
                try:
                    answers = [pool.submit(post_completion, url, prompt, output_tokens) for prompt in prompts]
                    for answer in concurrent.futures.as_completed(answers):
                        if answer.result() != output_tokens:
                            raise RuntimeError(f"llama-server answered {answer.result()} tokens instead of {output_tokens}")
                except BaseException:
                    self.close()  # or the pool would wait for all the others
                    raise
            return time.perf_counter() - start
        finally:
            self.close()

    def serve_target(self):
        url = self._start(16, 1024)
        return ["--url", url + "/v1", "--tokenizer", self.model]

    def served_by(self, report):
        pass

    def close(self):
        if self.server is not None:
            stop(self.server)
            self.server = None


def post_completion(url, prompt, output_tokens):
    """Greedy completion of token ids by llama-server; the number of tokens that came."""
    body = {"prompt": prompt, "n_predict": output_tokens, "temperature": 0, "ignore_eos": True, "cache_prompt": True}
    request = urllib.request.Request(url + "/completion", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=RUN_LIMIT_S) as answer:
        return json.load(answer)["tokens_predicted"]


class OpenVino:
    name = "OpenVINO"

    def __init__(self, model, threads):
        self.model, self.threads = model, threads
        self.version = ""
        self.worker, self.errors = None, None
        self.refusal = None  # why it does not run this model

    def _ask(self, job):
        if self.refusal:
            raise NotAvailable(self.refusal)
        if self.worker is None:
            self._start()
        try:
            self.worker.stdin.write(json.dumps(job) + "\n")
            self.worker.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended, and _answer says how
        answer = self._answer()
        if "error" in answer:
            raise RuntimeError(f"openvino_worker: {answer['error']}")
        return answer

    def _start(self):
        worker = os.path.join(ROOT, "scripts", "openvino_worker.py")
        self.errors = tempfile.TemporaryFile(mode="w+", errors="replace")  # a pipe that nobody reads would stop a talkative worker
        self.worker = subprocess.Popen([sys.executable, worker, self.model, str(self.threads), "3"], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, stderr=self.errors, text=True, errors="replace")
        try:
            answer = self._answer()
        except Ended as end:
            if end.returncode != -signal.SIGABRT:
                raise
            answer = {"refused": str(end)}  # by an assertion of its libraries
        if "refused" in answer:
            self.close()
            self.refusal = f"does not run this model: {answer['refused'][-120:]}"
            raise NotAvailable(self.refusal)
        self.version = answer["ready"]

    def _answer(self):
        """The next line of JSON. Lines of the library's own are passed over. Without an answer the next job gets a new worker."""
        worker, late = self.worker, threading.Event()
        limit = threading.Timer(RUN_LIMIT_S, lambda: (late.set(), worker.kill()))
        limit.daemon = True  # a signal may end the start before there is anything to cancel, and nobody shall wait for it then
        try:
            limit.start()
            line = next((line for line in worker.stdout if line.startswith("{")), "")
            returncode = None if line.endswith("\n") else worker.wait()
        finally:
            limit.cancel()
        if returncode is None:
            try:
                return last_json(line)
            except RuntimeError:
                self.close()  # or the next job would be given the answer that is still to come
                raise
        self.errors.seek(0)
        last = self.errors.read().strip().splitlines()[-1:]
        self.close()
        how = f"did not answer within {RUN_LIMIT_S} s" if late.is_set() else ending(returncode)
        raise Ended(": ".join([f"openvino_worker {how}", *last])[-500:], returncode)

    def prefill(self, tokens, seed):
        return self._ask({"job": "prefill", "prompt_tokens": tokens, "seed": seed})["tokens_per_s"]

    def decode(self, streams, context, output_tokens, seed):
        return self._ask({"job": "decode", "streams": streams, "prompt_tokens": context, "output_tokens": output_tokens,
                          "seed": seed})["tokens_per_s"]

    def shared(self, streams, prompt_tokens, prefix, output_tokens, seed):
        return self._ask({"job": "shared", "streams": streams, "prompt_tokens": prompt_tokens, "shared_prefix": prefix,
                          "output_tokens": output_tokens, "seed": seed})["seconds"]

    def score(self, ids):
        return self._ask({"job": "score", "ids": ids})["logprobs"]

    def serve_target(self):
        raise NotAvailable("has no server in its Python package")

    def close(self):
        if self.worker is not None:
            with contextlib.suppress(BrokenPipeError):
                self.worker.stdin.close()  # its sign to end
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.worker.wait(timeout=END_LIMIT_S)
            stop(self.worker)
            self.worker.stdout.close()
            self.errors.close()
            self.worker = None


def serve(target, rate, requests, seed):
    """serve_bench's JSON line under Poisson load of `rate` requests a second, or in a closed loop of 16 streams if None."""
    load = ["--streams", "16"] if rate is None else ["--rate", f"{rate:.6g}", "--arrivals", "poisson"]
    command = [os.path.join(OURS, "serving", "serve_bench"), *target, *load, "--num-requests", str(max(requests, 16) if rate is None else requests),
               "--input-tokens", "64:256", "--output-tokens", "32:96", "--seed", str(seed), "--no-progress", "--json", "-"]
    return last_json(run(command))
