"""compare_peers.py: its verdicts, its refusal of a busy machine and of wrong arguments, and that a failed run gives no figure."""

import contextlib
import io
import os
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
        for value in (RuntimeError("died"), 0, -1, float("nan")):
            with self.assertRaises(RuntimeError):
                compare_peers.measure_cell("prefill-512", [Program("quire", [value])], options())

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
        makers = {name: getattr(peers, name) for name in ("Quire", "LlamaCpp", "OpenVino")}
        model_path, compare_peers.model_path = compare_peers.model_path, lambda name: name
        peers.Quire, peers.LlamaCpp, peers.OpenVino = (lambda *a, p=p: p for p in (quire, llama, openvino))
        try:
            with contextlib.redirect_stdout(io.StringIO()) as out:
                rows, failed = compare_peers.compare(options(cells=["serve-80", "prefill-512"], requests=1))
        finally:
            compare_peers.model_path = model_path
            for name, maker in makers.items():
                setattr(peers, name, maker)
        self.assertTrue(failed)
        self.assertEqual([row["cell"] for row in rows], ["prefill-512"])
        self.assertIn("serve-80           failed, no figure: llama-server ended with 1", out.getvalue())

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


class TalkativeWorkers(unittest.TestCase):
    def test_errors_beyond_a_pipe_do_not_stop_it(self):
        worker = ("import sys, json\nprint(json.dumps({'ready': '1'}), flush=True)\n"
                  "for line in sys.stdin:\n    sys.stderr.write('x' * 1_000_000)\n    print('{\"tokens_per_s\": 5}', flush=True)\n")
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "scripts"))
            with open(os.path.join(folder, "scripts", "openvino_worker.py"), "w", encoding="utf-8") as file:
                file.write(worker)
            root, peers.ROOT = peers.ROOT, folder
            program = peers.OpenVino("model", 1)
            try:
                self.assertEqual(program.prefill(512, 1), 5)
            finally:
                program.close()
                peers.ROOT = root


class CommandLine(unittest.TestCase):
    def run_script(self, *arguments):
        return subprocess.run([sys.executable, os.path.join(SCRIPTS, "compare_peers.py"), *arguments], capture_output=True, text=True,
                              check=False)

    def test_wrong_arguments(self):
        for arguments in (["--cells", "prefill-512,nonsense"], ["--models", "gpt"], ["--rounds", "0"], ["--rounds", "-1"],
                          ["--threads", "x"], ["--no-such-flag"], ["--isa", "sse"], ["--json", "/nonexistent/x.json"]):
            result = self.run_script(*arguments)
            self.assertEqual((result.returncode, result.stdout), (2, ""), arguments)
            self.assertIn("compare_peers: error:", result.stderr)

    def test_only_what_the_cells_need_is_built(self):
        self.assertEqual(self.run_script("--needs", "--quick").stdout, "llama-batched-bench llama-bench;throughput_bench;native\n")
        self.assertIn("llama-server", self.run_script("--needs", "--cells", "shared-prefix").stdout)
        self.assertIn(";avx2", self.run_script("--needs", "--quick", "--isa", "avx2").stdout)
        self.assertIn("serve_bench", self.run_script("--needs", "--cells", "serve-80").stdout)


if __name__ == "__main__":
    unittest.main()
