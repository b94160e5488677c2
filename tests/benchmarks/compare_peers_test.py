"""compare_peers.py: its verdicts, its refusal of a busy machine and of wrong arguments, and that a failed run gives no figure."""

import contextlib
import io
import os
import signal
import subprocess
import sys
import tempfile
import time
import types
import unittest

SCRIPTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts")
sys.path.insert(0, SCRIPTS)
import compare_peers  # noqa: E402
import peers  # noqa: E402


class Program:
    """A program that measures the values it is given, or raises them."""

    def __init__(self, name, values):
        self.name, self.values, self.version, self.calls = name, list(values), "1", 0

    def prefill(self, tokens, seed):
        del tokens, seed
        value = self.values[self.calls % len(self.values)]
        self.calls += 1
        if isinstance(value, Exception):
            raise value
        return value

    def close(self):
        pass


def options(**changed):
    return types.SimpleNamespace(**{"rounds": 3, "max_foreign_load": 5.0, "force": False, "quick": False, "cells": ["prefill-512"],
                                    "models": ["smollm2"], "threads": 1, **changed})


@contextlib.contextmanager
def these_programs(*programs):
    """compare() with these in the place of quire, llama.cpp and OpenVINO, and without a model."""
    kept = {name: getattr(peers, name) for name in ("Quire", "LlamaCpp", "OpenVino")}
    model_path, compare_peers.model_path = compare_peers.model_path, lambda name: name
    for name, program in zip(kept, programs):
        setattr(peers, name, lambda *arguments, program=program: program)
    try:
        yield
    finally:
        compare_peers.model_path = model_path
        for name, maker in kept.items():
            setattr(peers, name, maker)


class Verdicts(unittest.TestCase):
    def judge(self, figure, ours, model="smollm2", **others):
        return compare_peers.judge(figure, model, {"quire": ours, **others})

    def test_rates_want_to_be_high(self):
        result = self.judge("prefill-512", [30, 32, 31], a=[10, 10, 10], b=[20, 20, 20])
        self.assertEqual(result["faster_peer"], "b")
        self.assertAlmostEqual(result["ratio"], 1.55)
        self.assertEqual(result["verdict"], "ahead, target 1.5x met")
        self.assertEqual(self.judge("prefill-512", [29, 29, 29], b=[20, 20, 20])["verdict"], "ahead, target 1.5x missed")
        self.assertEqual(self.judge("decode-8x2000", [5, 5, 5], b=[20, 20, 20])["verdict"], "behind")

    def test_times_want_to_be_low(self):
        result = self.judge("shared-prefix", [4, 4, 4], a=[10, 10, 10], b=[20, 20, 20])
        self.assertEqual((result["faster_peer"], result["verdict"]), ("a", "ahead, target 0.5x met"))
        self.assertEqual(self.judge("shared-prefix", [6, 6, 6], a=[10, 10, 10])["verdict"], "ahead, target 0.5x missed")
        self.assertEqual(self.judge("serve-80 TTFT p50", [11, 12, 13], a=[10, 10, 10])["verdict"], "behind")

    def test_rounds_that_disagree_are_no_win(self):
        self.assertIn("level", self.judge("decode-8x2000", [19, 25, 26], b=[20, 20, 20])["verdict"])

    def test_without_a_peer_there_is_no_ratio(self):
        self.assertNotIn("ratio", self.judge("prefill-512", [1, 2, 3]))

    def test_every_target_is_of_a_figure_that_exists(self):
        figures = set(compare_peers.CELLS) | {f"{cell} TTFT p99" for cell in compare_peers.SERVE}
        self.assertTrue({figure for _, figure in compare_peers.TARGETS} <= figures)


class Versions(unittest.TestCase):
    def test_a_refused_model_does_not_hide_a_version(self):
        rows = [{"versions": {"quire": "a", "OpenVINO": "2026"}}, {"versions": {"quire": "a", "OpenVINO": ""}}]
        self.assertEqual(compare_peers.versions_seen(rows), {"quire": "a", "OpenVINO": "2026"})
        self.assertEqual(compare_peers.versions_seen([]), {})


class Tables(unittest.TestCase):
    ROW = {"model": "smollm2", "figure": "serve-80 TTFT p99", "unit": "ms", "rounds": {"quire": [1, 2, 3]}, "target": 0.3,
           "medians": {"quire": 209.512, "llama.cpp": 2254.4}, "ratio": 0.094, "ratio_min": 0.081, "ratio_max": 0.099}

    def test_the_last_file_has_its_way(self):
        with tempfile.TemporaryDirectory() as folder:
            files = [os.path.join(folder, name) for name in ("a", "b")]
            for name, ratio in zip(files, (0.5, 0.094)):
                with open(name, "w", encoding="utf-8") as file:
                    compare_peers.json.dump({"rows": [{**self.ROW, "ratio": ratio}]}, file)
            lines = compare_peers.markdown(files).splitlines()
        self.assertEqual(lines[2:], ["| smollm2 | serve-80 TTFT p99, ms | 209.5 | 2254 | - | 0.09 (0.08 to 0.10) | 0.3 | 3 |"])

    def test_what_is_no_such_file_is_named(self):
        def changed(**fields):
            return {"rows": [self.ROW, {**self.ROW, **fields}]}

        def without(name):
            return {"rows": [{key: value for key, value in self.ROW.items() if key != name}]}

        cases = [("", "is no JSON"), ('{"rows": [', "is no JSON"), (b"\xff\xfe", "is no JSON"), ([], "no list of rows"),
                 ({"rows": 5}, "no list of rows"), ({}, "no list of rows"), ({"rows": []}, "there are no rows"),
                 ({"rows": ["x"]}, "row 1 is no object"), (without("medians"), "row 1 has no medians"),
                 (without("unit"), "row 1 has no unit"), (without("ratio_min"), "row 1 has None as ratio_min"),
                 (changed(rounds=[1]), "row 2 has [1] as rounds"), (changed(rounds={"quire": 3}), "row 2 has rounds that are no lists"),
                 (changed(medians={"quire": None}), "row 2 has None as median of quire"),
                 (changed(medians={"quire": float("nan")}), "row 2 has nan as median of quire"),
                 (changed(ratio="0.5"), "row 2 has '0.5' as ratio"), (changed(target=[]), "row 2 has [] as target"),
                 (changed(model=5), "row 2 has 5 as model")]
        with tempfile.TemporaryDirectory() as folder:
            name = os.path.join(folder, "peers.json")
            for content, message in cases:
                with open(name, "wb") as file:
                    raw = content if isinstance(content, bytes) else content.encode() if isinstance(content, str) else None
                    file.write(compare_peers.json.dumps(content).encode() if raw is None else raw)
                with self.assertRaises(compare_peers.Unreadable) as caught:
                    compare_peers.markdown([name])
                self.assertIn(message, str(caught.exception))
                self.assertIn(name, str(caught.exception))
            self.assertRaisesRegex(compare_peers.Unreadable, "cannot read .*: Is a directory", compare_peers.markdown, [folder])


class Instructions(unittest.TestCase):
    def test_every_program_is_capped(self):
        kept, llama = dict(os.environ), peers.LLAMA
        try:
            peers.limit_instructions("avx2")
            self.assertEqual((os.environ["QUIRE_CPU_ISA"], os.environ["ONEDNN_MAX_CPU_ISA"]), ("avx2", "AVX2"))
            self.assertIn("llama.cpp-avx2", peers.LLAMA)
        finally:
            os.environ.clear()
            os.environ.update(kept)
            peers.LLAMA = llama


class Watch:
    """A LoadWatch whose loads are given."""

    loads = []

    def percent_of_cores(self):
        return Watch.loads.pop(0) if Watch.loads else 0.0


class Rounds(unittest.TestCase):
    def setUp(self):
        self.kept = compare_peers.foreign_load, compare_peers.LoadWatch, compare_peers.time.sleep
        compare_peers.foreign_load = lambda: 0.0
        compare_peers.LoadWatch, Watch.loads = Watch, []
        compare_peers.time.sleep = lambda seconds: None

    def tearDown(self):
        compare_peers.foreign_load, compare_peers.LoadWatch, compare_peers.time.sleep = self.kept

    def test_each_program_is_first_in_some_round(self):
        order = []

        class Notes(Program):
            def prefill(self, tokens, seed):
                order.append((seed, self.name))
                return super().prefill(tokens, seed)

        programs = [Notes(name, [1, 2, 3]) for name in "abc"]
        compare_peers.measure_cell("prefill-512", programs, options())
        self.assertEqual("".join(name for _, name in order), "abcbcacab")
        self.assertEqual([seed for seed, _ in order], [1, 1, 1, 2, 2, 2, 3, 3, 3])

    def test_a_disturbed_round_is_measured_again(self):
        Watch.loads = [0.0, 30.0, 2.0, 0.0]
        with contextlib.redirect_stderr(io.StringIO()) as errors:
            values, _, load = compare_peers.measure_cell("prefill-512", [Program("quire", [1, 99, 2, 3])], options())
        self.assertEqual((values["prefill-512"]["quire"], load), ([1, 2, 3], 2.0))
        self.assertIn("used 30 % of the cores during a round of prefill-512", errors.getvalue())

    def test_rounds_that_stay_disturbed_are_refused_unless_forced(self):
        Watch.loads = [30.0] * 3
        with contextlib.redirect_stderr(io.StringIO()), self.assertRaises(compare_peers.Busy):
            compare_peers.measure_cell("prefill-512", [Program("quire", [1, 2, 3])], options())
        Watch.loads = [30.0]
        _, _, load = compare_peers.measure_cell("prefill-512", [Program("quire", [1, 2, 3])], options(force=True))
        self.assertEqual(load, 30.0)

    def test_programs_take_turns(self):
        ours, theirs = Program("quire", [1, 2, 3]), Program("a", [4, 5, 6])
        values, absent, _ = compare_peers.measure_cell("prefill-512", [ours, theirs], options())
        self.assertEqual(values, {"prefill-512": {"quire": [1, 2, 3], "a": [4, 5, 6]}})
        self.assertEqual(absent, {})

    def test_a_program_that_cannot_is_named_with_its_reason(self):
        cannot = Program("a", [peers.NotAvailable("no Gemma")])
        values, absent, _ = compare_peers.measure_cell("prefill-512", [Program("quire", [1]), cannot], options())
        self.assertEqual(absent, {"a": "no Gemma"})
        self.assertEqual(list(values["prefill-512"]), ["quire"])
        self.assertEqual(cannot.calls, 1)

    def test_failures_and_nonsense_give_no_figure(self):
        for value in (RuntimeError("died"), 0, -1, float("nan"), float("inf"), None, "5", KeyError("rows"), IndexError()):
            with self.assertRaises(RuntimeError):
                compare_peers.measure_cell("prefill-512", [Program("quire", [value])], options())

    def test_answers_of_another_version_are_named(self):
        with self.assertRaisesRegex(RuntimeError, r"a answered something else than expected: KeyError\('rows'\)"):
            compare_peers.measure_cell("prefill-512", [Program("quire", [1]), Program("a", [KeyError("rows")])], options())

    def test_a_busy_machine_is_refused_unless_forced(self):
        compare_peers.foreign_load = lambda: 5.1
        with contextlib.redirect_stderr(io.StringIO()):
            with self.assertRaises(compare_peers.Busy):
                compare_peers.measure_cell("prefill-512", [Program("quire", [1])], options())
        _, _, load = compare_peers.measure_cell("prefill-512", [Program("quire", [1])], options(force=True))
        self.assertEqual(load, 5.1)


    def test_a_server_that_does_not_start_fails_its_cells_alone(self):
        class Fails(Program):
            def serve_target(self):
                raise RuntimeError("llama-server ended with 1")

        quire, llama, openvino = Program("quire", [1]), Fails("llama.cpp", [2]), Program("OpenVINO", [3])
        with these_programs(quire, llama, openvino), contextlib.redirect_stdout(io.StringIO()) as out:
            rows, failed = compare_peers.compare(options(cells=["serve-80", "prefill-512"], requests=1))
        self.assertTrue(failed)
        self.assertEqual([row["cell"] for row in rows], ["prefill-512"])
        self.assertIn("serve-80           failed, no figure: llama-server ended with 1", out.getvalue())

    def test_what_was_measured_stays_if_the_machine_is_busy_later(self):
        programs = Program("quire", [1]), Program("llama.cpp", [2]), Program("OpenVINO", [3])
        measure = compare_peers.measure_cell

        def busy_at_the_second(cell, *arguments):
            if cell != "prefill-512":
                raise compare_peers.Busy("others used 30 %")
            return measure(cell, *arguments)

        compare_peers.measure_cell = busy_at_the_second
        with tempfile.TemporaryDirectory() as folder, these_programs(*programs), contextlib.redirect_stdout(io.StringIO()):
            path = os.path.join(folder, "peers.json")
            try:
                wanted = options(cells=["prefill-512", "decode-1x128"], isa="native", json=path)
                self.assertRaises(compare_peers.Busy, compare_peers.compare, wanted,
                                  lambda rows: compare_peers.write_json(wanted, "2026-12-01", rows))
            finally:
                compare_peers.measure_cell = measure
            self.assertIn("| smollm2 | prefill-512, tokens/s | 1 | 2 | 3 |", compare_peers.markdown([path]))

    def test_answers_that_are_shorter_are_not_compared(self):
        self.assertRaises(RuntimeError, compare_peers.checked, {"requests": {"failed": 0, "short_answers": 1}})
        self.assertRaises(RuntimeError, compare_peers.checked, {"requests": {"failed": 1, "short_answers": 0}})
        compare_peers.checked({"requests": {"failed": 0, "short_answers": 0}})

    def test_a_program_without_output_gives_no_figure(self):
        self.assertRaises(RuntimeError, peers.last_json, " \n")


class OwnLoad(unittest.TestCase):
    BURN = "import time\nwhile time.process_time() < 0.5: pass\n"

    def test_ended_and_living_children_are_ours(self):
        before = compare_peers.own_cpu_seconds()
        subprocess.run([sys.executable, "-c", self.BURN], check=True)
        self.assertGreater(compare_peers.own_cpu_seconds() - before, 0.4)
        living = [sys.executable, "-c", self.BURN + "print(1, flush=True)\ninput()"]
        with subprocess.Popen(living, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            child.stdout.readline()
            self.assertGreater(compare_peers.own_cpu_seconds() - before, 0.8)
            child.communicate(b"\n")
        self.assertLess(compare_peers.own_cpu_seconds() - before, 60)

    def test_a_process_of_others_is_foreign(self):
        # The shell ends at once, so that its child has another parent.
        before, busy = compare_peers.own_cpu_seconds(), compare_peers.cpu_times()[0]
        with tempfile.TemporaryDirectory() as folder:
            done = os.path.join(folder, "done")
            subprocess.run(f"{sys.executable} -c '{self.BURN}open(\"{done}\", \"w\")' &", shell=True, check=True)
            for _ in range(600):
                if os.path.exists(done):
                    break
                time.sleep(0.05)
        self.assertLess(compare_peers.own_cpu_seconds() - before, 0.4)
        self.assertGreater((compare_peers.cpu_times()[0] - busy) / os.sysconf("SC_CLK_TCK"), 0.4)


def writes_its_pid(pid_file):
    """A Python program's text: it lives for a minute after."""
    return (f"import os, time\nopen({pid_file!r} + '.part', 'w').write(str(os.getpid()))\n"
            f"os.rename({pid_file!r} + '.part', {pid_file!r})\ntime.sleep(60)\n")


class Limits(unittest.TestCase):
    """With limits of moments, and a folder in the place of quire's and llama.cpp's programs."""

    NAMES = ("ROOT", "LLAMA", "RUN_LIMIT_S", "START_LIMIT_S", "END_LIMIT_S")

    def setUp(self):
        self.kept = {name: getattr(peers, name) for name in self.NAMES}
        self.folder = tempfile.TemporaryDirectory()
        peers.ROOT = peers.LLAMA = self.folder.name
        peers.START_LIMIT_S = peers.END_LIMIT_S = 0.5

    def tearDown(self):
        for name, value in self.kept.items():
            setattr(peers, name, value)
        self.folder.cleanup()

    def expect_nothing_left(self, setup, pid_file):
        """Ends a comparison that does `work` with `program`, which `setup` sets, once what it started has written its pid."""
        script = (f"import sys\nsys.path.insert(0, {SCRIPTS!r})\nimport compare_peers, peers\n"
                  f"peers.ROOT = peers.LLAMA = {self.folder.name!r}\n{setup}"
                  "def measure(options):\n    try:\n        work()\n    finally:\n        program.close()\n"
                  "compare_peers.markdown_or_measure = measure\nsys.argv = ['compare_peers']\nsys.exit(compare_peers.main())\n")
        with subprocess.Popen([sys.executable, "-c", script]) as comparison:
            try:
                while not os.path.exists(pid_file):
                    self.assertIsNone(comparison.poll())
                    time.sleep(0.05)
                with open(pid_file, encoding="ascii") as file:
                    started = int(file.read())
                comparison.terminate()
                self.assertEqual(comparison.wait(timeout=60), 128 + signal.SIGTERM)
            finally:
                comparison.kill()
        with self.assertRaises(ProcessLookupError):
            os.kill(started, signal.SIGKILL)


class Workers(Limits):
    READY = "import os, sys, time\nprint('{\"ready\": \"1\"}', flush=True)\n"

    def worker(self, text):
        os.makedirs(os.path.join(self.folder.name, "scripts"), exist_ok=True)
        with open(os.path.join(self.folder.name, "scripts", "openvino_worker.py"), "w", encoding="utf-8") as file:
            file.write(text)
        program = peers.OpenVino("model", 1)
        self.addCleanup(program.close)
        return program

    def test_errors_beyond_a_pipe_do_not_stop_it(self):
        program = self.worker(self.READY + "for line in sys.stdin:\n    sys.stderr.write('x' * 1_000_000)\n"
                              "    print('{\"tokens_per_s\": 5}', flush=True)\n")
        self.assertEqual(program.prefill(512, 1), 5)

    def test_one_that_dies_fails_the_job_and_the_next_gets_another(self):
        been = os.path.join(self.folder.name, "been")
        program = self.worker(self.READY + f"sys.stdin.readline()\nif os.path.exists({been!r}):\n"
                              "    print('{\"tokens_per_s\": 5}', flush=True)\n    sys.exit()\n"
                              f"open({been!r}, 'w').close()\nsys.exit('out of luck')\n")
        self.assertRaisesRegex(peers.Ended, "openvino_worker ended with status 1: out of luck", program.prefill, 512, 1)
        self.assertEqual(program.prefill(512, 1), 5)
        half = self.worker(self.READY + "sys.stdin.readline()\nprint('{\"tokens', end='', flush=True)\nos.kill(os.getpid(), 9)\n")
        self.assertRaisesRegex(peers.Ended, "was ended by signal 9", half.prefill, 512, 1)

    def test_one_that_dies_between_jobs_is_noticed(self):
        program = self.worker(self.READY + "sys.stdin.readline()\nprint('{\"tokens_per_s\": 5}', flush=True)\nsys.stdin.close()\n")
        self.assertEqual(program.prefill(512, 1), 5)
        program.worker.wait()
        self.assertRaisesRegex(peers.Ended, "ended with status 0", program.prefill, 512, 1)

    def test_one_that_hangs_is_ended(self):
        peers.RUN_LIMIT_S = 0.5
        for text in ("import time\ntime.sleep(60)\n", self.READY + "time.sleep(60)\n", self.READY + "os.close(1)\ntime.sleep(60)\n"):
            start = time.monotonic()
            self.assertRaisesRegex(peers.Ended, "did not answer within 0.5 s", self.worker(text).prefill, 512, 1)
            self.assertLess(time.monotonic() - start, 30)

    def test_an_answer_of_one_job_is_not_given_to_the_next(self):
        program = self.worker(self.READY + "for number, line in enumerate(sys.stdin):\n    print('{a line of a library}')\n"
                              "    print('{\"tokens_per_s\": %d}' % (number + 5), flush=True)\n")
        for _ in range(2):
            self.assertRaisesRegex(RuntimeError, "no JSON object: {a line of a library}", program.prefill, 512, 1)

    def test_only_what_it_refuses_itself_counts_as_refused(self):
        refuses = "print('{\"refused\": \"no Gemma\"}', flush=True)\n"
        program = self.worker(refuses)
        for _ in range(2):
            self.assertRaisesRegex(peers.NotAvailable, "does not run this model: no Gemma", program.prefill, 512, 1)
        aborts = self.worker("import os\nos.abort()\n")
        self.assertRaisesRegex(peers.NotAvailable, "does not run this model: .*signal 6", aborts.prefill, 512, 1)
        for text in ("import no_such_package\n", "import os\nos.kill(os.getpid(), 9)\n"):
            self.assertRaises(peers.Ended, self.worker(text).prefill, 512, 1)


    def test_one_that_works_is_ended_with_the_comparison(self):
        pid_file = os.path.join(self.folder.name, "pid")
        self.worker(self.READY + writes_its_pid(pid_file))
        self.expect_nothing_left("peers.END_LIMIT_S = 0.5\nprogram, work = peers.OpenVino('model', 1), lambda: program.prefill(512, 1)\n",
                                 pid_file)


class Programs(Limits):
    def run_python(self, text):
        return peers.run([sys.executable, "-c", text])

    def test_failures_say_what_happened(self):
        self.assertRaisesRegex(RuntimeError, "ended with status 3: bad luck", self.run_python,
                               "import sys\nprint(5)\nsys.stderr.write('bad luck')\nsys.exit(3)")
        self.assertRaisesRegex(RuntimeError, "was ended by signal 9", self.run_python, "import os\nos.kill(os.getpid(), 9)")
        peers.RUN_LIMIT_S = 0.5
        self.assertRaisesRegex(RuntimeError, "did not end within 0.5 s", self.run_python, "import time\ntime.sleep(60)")

    def test_the_last_line_has_to_be_an_object(self):
        self.assertEqual(peers.last_json('a table\n{"a": 1}\n'), {"a": 1})
        for text in ("a table\n", '{"a": ', "[1]", "5"):
            self.assertRaisesRegex(RuntimeError, "no JSON object", peers.last_json, text)

    def server(self, text):
        path = os.path.join(self.folder.name, "llama-server")
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"#!{sys.executable}\n{text}")
        os.chmod(path, 0o755)
        return peers.LlamaCpp("model", 1)

    def test_servers_that_do_not_come_up_or_do_not_end_are_ended(self):
        peers.START_LIMIT_S = 60  # a loaded machine may need more than a moment to start Python
        self.assertRaisesRegex(RuntimeError, "llama-server ended with status 4 before", self.server("exit(4)").serve_target)
        peers.START_LIMIT_S = 0.5
        stubborn = self.server("import signal, socket, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
                               "port = int(sys.argv[sys.argv.index('--port') + 1])\n"
                               "listener = socket.create_server(('127.0.0.1', port))\ntime.sleep(60)")  # it never answers
        start = time.monotonic()
        self.assertRaisesRegex(RuntimeError, "not ready within 0.5 s", stubborn.serve_target)
        process = stubborn.server
        stubborn.close()
        self.assertLess(time.monotonic() - start, 30)
        self.assertIsNotNone(process.returncode)

    def test_a_server_is_ended_if_its_work_fails(self):
        program = self.server("import time\ntime.sleep(60)")
        self.assertRaises(RuntimeError, program.shared, 1, 20, 10, 1, 1)
        self.assertIsNone(program.server)

    def test_a_server_that_fails_one_request_is_not_waited_for(self):
        peers.START_LIMIT_S = 60
        program = self.server(self.HALF_A_SERVER)
        start = time.monotonic()
        self.assertRaisesRegex(RuntimeError, "answered 1 tokens instead of 4", program.shared, 2, 20, 10, 4, 1)
        self.assertLess(time.monotonic() - start, 30)
        self.assertIsNone(program.server)

    # Answers the warm-up and one request more, neither of which has the tokens asked for, and no other.
    HALF_A_SERVER = """
import http.server, itertools, sys, time
numbers = itertools.count()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def do_POST(self):
        if next(numbers) > 1:
            time.sleep(60)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"tokens_predicted": 1}')
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""

    def test_a_comparison_that_is_ended_leaves_no_server(self):
        pid_file = os.path.join(self.folder.name, "pid")
        self.server(writes_its_pid(pid_file))
        self.expect_nothing_left("program = peers.LlamaCpp('model', 1)\nwork = program.serve_target\n", pid_file)

    def test_models_are_looked_for_before_anything_runs(self):
        os.mkdir(os.path.join(self.folder.name, "models"))
        with open(os.path.join(self.folder.name, "models", compare_peers.MODELS["smollm2"]), "w", encoding="utf-8"):
            pass
        kept = compare_peers.foreign_load, sys.argv
        compare_peers.foreign_load = lambda: 0.0
        sys.argv = ["compare_peers", "--models", "smollm2,gemma3", "--force"]
        try:
            with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as errors:
                self.assertEqual(compare_peers.main(), 1)
        finally:
            compare_peers.foreign_load, sys.argv = kept
        self.assertIn("scripts/fetch_model.sh gemma3 brings it", errors.getvalue())
        self.assertNotIn("failed", out.getvalue())


class CommandLine(unittest.TestCase):
    def run_script(self, *arguments):
        return subprocess.run([sys.executable, os.path.join(SCRIPTS, "compare_peers.py"), *arguments], capture_output=True, text=True,
                              check=False)

    def test_wrong_arguments(self):
        for arguments in (["--cells", "prefill-512,nonsense"], ["--models", "gpt"], ["--rounds", "0"], ["--rounds", "-1"],
                          ["--threads", "x"], ["--no-such-flag"], ["--isa", "sse"], ["--json", "/nonexistent/x.json"],
                          ["--json", "/"], ["--json", ""], ["--cells", "prefill-512,,serve-80"], ["--cells", ""],
                          ["--cells", "serve-80,serve-80"], ["--max-foreign-load", "nan"], ["--max-foreign-load", "-1"], ["--markdown"]):
            result = self.run_script(*arguments)
            self.assertEqual((result.returncode, result.stdout), (2, ""), arguments)
            self.assertIn("compare_peers: error:", result.stderr)

    def test_options_that_cannot_matter(self):
        for arguments, message in ((["--markdown", "x", "--json", "y"], "--json does not apply with --markdown"),
                                   (["--markdown", "x", "--quick"], "--quick does not apply with --markdown"),
                                   (["--accuracy", "--rounds", "5"], "--rounds does not apply with --accuracy"),
                                   (["--accuracy", "--max-foreign-load", "0"], "--max-foreign-load does not apply with --accuracy"),
                                   (["--quick", "--requests", "60"], "--requests does not apply without a serve cell")):
            result = self.run_script(*arguments)
            self.assertEqual((result.returncode, result.stdout), (2, ""), arguments)
            self.assertIn(message, result.stderr)

    def test_a_table_of_no_file(self):
        result = self.run_script("--markdown", "/nonexistent/peers.json")
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertEqual(result.stderr, "compare_peers: cannot read /nonexistent/peers.json: No such file or directory\n")

    def test_only_what_the_cells_need_is_built(self):
        self.assertEqual(self.run_script("--needs", "--quick").stdout, "llama-batched-bench llama-bench;throughput_bench;native\n")
        self.assertIn("llama-server", self.run_script("--needs", "--cells", "shared-prefix").stdout)
        self.assertIn(";avx2", self.run_script("--needs", "--quick", "--isa", "avx2").stdout)
        self.assertIn("serve_bench", self.run_script("--needs", "--cells", "serve-80").stdout)


if __name__ == "__main__":
    unittest.main()
