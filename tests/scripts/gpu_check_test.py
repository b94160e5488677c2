"""scripts/gpu_check.sh without a GPU, in a tree of its own where programs that only print stand for the built ones: what of them
gets into results.json, which is strict JSON whatever they print, and that no part's end keeps another from running. Argument: the
folder with the real benchmarks, whose options are those that the script gives them."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

SCRIPTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts")
MODEL = "models/SmolLM2-135M-Instruct.Q4_1.gguf"
BENCHMARKS = ""
CTEST_LOG = r"""Test project build-cuda
      Start  1: A.Passes
 1/6 Test  #1: A.Passes ............................   Passed    0.01 sec
 2/6 Test  #2: A.Skips/0  # GetParam() = "a\b" .....***Skipped   0.02 sec
 3/6 Test  #3: A.Fails .............................***Failed    0.03 sec
he said "no\n" and \ud800
 4/6 Test  #4: A.Hangs .............................***Timeout  10.00 sec
 5/6 Test  #5: A.Aborts ............................Subprocess aborted***Exception:   0.03 sec
 6/6 Test  #6: A.Crashes ...........................***Exception: SegFault  0.03 sec
"""


def strict(text):
    def refuse(constant):
        raise ValueError(constant)
    return json.loads(text, parse_constant=refuse)


def running(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class Tree:
    """scripts/gpu_check* in a folder with stand-ins: `say` gives one its output and exit status."""

    def __init__(self):
        self.folder = tempfile.mkdtemp()
        os.makedirs(self.at("scripts"))
        for name in ("gpu_check.sh", "gpu_check_results.py"):
            shutil.copy(os.path.join(SCRIPTS, name), self.at("scripts"))
        self.slow = ""
        # A second for the part that is slow.
        self.program("bin/timeout", f'[[ "${{*: -1}}" != "$SLOW" ]] || set -- --kill-after=1 1 "${{@:3}}"\n'
                     f'exec {shutil.which("timeout")} "$@"\n')
        self.say("bin/nvidia-smi", b"NVIDIA \"Fake\" \\ GPU, 1\n")
        self.say("bin/cmake", b"")
        self.say("bin/ctest", b" 1/1 Test #1: A ....   Passed    0.01 sec\n")
        self.say("bin/compute-sanitizer", b"")
        self.say("scripts/gpu_check_torch.py", b"no PyTorch\n", 77)
        for bench in ("attention_bench", "throughput_bench", "serving/serve_bench"):
            self.say("build-cuda/benchmarks/" + bench, b'a table\n{"bench": "%s"}\n' % bench.encode(), 0, 'echo "given $*"')
        for test in ("attention", "activation", "embedding", "kv_cache", "norm", "quantized", "rope", "sampling"):
            self.say(f"build-cuda/tests/kernels/cuda/cuda_{test}_test", b"Suite.\n  Name\n")
        os.makedirs(self.at("models"))
        self.write(MODEL, b"")

    def at(self, path):
        return os.path.join(self.folder, path)

    def write(self, path, data):
        os.makedirs(os.path.dirname(self.at(path)), exist_ok=True)
        with open(self.at(path), "wb") as file:
            file.write(data)

    def program(self, path, body):
        if path.endswith(".py"):
            body = f'import subprocess, sys\nsys.exit(subprocess.run(["bash", "-c", {body!r}]).returncode)\n'
        else:
            body = "#!/usr/bin/env bash\n" + body
        self.write(path, body.encode())
        os.chmod(self.at(path), 0o755)

    def say(self, path, output, status=0, then=":"):
        self.write(path + ".says", output)
        self.program(path, f"cat {self.at(path)}.says\n{then}\nexit {status}\n")

    def run(self, *arguments, path=None):
        environment = dict(os.environ, PATH=path or self.at("bin") + os.pathsep + os.environ["PATH"], SLOW=self.slow)
        return subprocess.run([shutil.which("bash"), self.at("scripts/gpu_check.sh"), *arguments], env=environment, text=True,
                              errors="replace", capture_output=True, check=False)

    def results(self):
        with open(self.at("gpu_check/results.json"), encoding="ascii") as file:
            result = strict(file.read())
        return result, {part["part"]: part for part in result["parts"]}


class GpuCheck(unittest.TestCase):
    def setUp(self):
        self.tree = Tree()
        self.addCleanup(shutil.rmtree, self.tree.folder)

    def states(self):
        return {name: part["status"] for name, part in self.tree.results()[1].items()}

    def test_all_parts_together_take_less_than_ten_minutes(self):
        parts = [line.split() for line in self.tree.run("--limits").stdout.splitlines()]
        self.assertIn("build", [name for name, _, _ in parts])
        naming_the_gpu, writing_results = 5, 1
        seconds = sum(int(limit) + int(grace) for _, limit, grace in parts) + naming_the_gpu + writing_results * len(parts)
        self.assertLess(seconds, 600, parts)

    def test_what_every_part_found_is_in_the_results(self):
        ended = self.tree.run()
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        result, parts = self.tree.results()
        self.assertEqual(result["gpu"], 'NVIDIA "Fake" \\ GPU, 1')
        self.assertEqual([*parts], ["build", "tests", "attention", "throughput", "serve", "torch", "sanitizer"])
        self.assertEqual(parts["tests"]["tests"], {"passed": 1, "failed": 0, "skipped": 0, "failed_tests": []})
        self.assertEqual(parts["attention"]["results"], [{"bench": "attention_bench"}])
        self.assertEqual(parts["throughput"]["results"], 2 * [{"bench": "throughput_bench"}])
        self.assertEqual(parts["serve"]["results"], [{"bench": "serving/serve_bench"}])
        for part, runs in (("throughput", 2), ("serve", 1)):
            given = [line for line in parts[part]["last_lines"] if line.startswith(f"given --model {MODEL} --device cuda ")]
            self.assertEqual(len(given), runs, parts[part])
        self.assertEqual(parts["sanitizer"]["verdicts"], {"clean": 3 * 8, "failed": []})
        self.assertEqual(parts["torch"]["status"], "skipped")
        self.assertIn("torch: skipped (no PyTorch)", ended.stdout)

    def test_a_part_that_fails_or_takes_too_long_stops_no_other(self):
        self.tree.slow = "attention"
        self.tree.say("bin/ctest", CTEST_LOG.encode() + b"\xff\xfe \x00\x1b[31m\n", 8)
        self.tree.say("build-cuda/benchmarks/attention_bench", b'{"row": 1}\n{"row": 2, "cut off', 0, "sleep 30")
        deep = b"".join(b'{"a":' * depth + b"1" + b"}" * depth + b"\n" for depth in (21, 995, 5000))
        self.tree.say("scripts/gpu_check_torch.py",
                      b'{"us": NaN, "x": [-Infinity, 1e999], "text": "a\\\\b\\"\\ud800"}\n{not json\n' + deep)
        self.tree.say("build-cuda/benchmarks/throughput_bench", b'{"run": 1}\n', 0, '[[ "$*" != *--prompts* ]] || exit 3')
        self.tree.say("bin/compute-sanitizer", b'invalid "read" \\ of \xc3\x28\n' * 50, 9)
        self.assertEqual(self.tree.run().returncode, 1)
        _, parts = self.tree.results()
        self.assertEqual({name: part["status"] for name, part in parts.items()},
                         {"build": "passed", "tests": "failed", "attention": "timed out", "throughput": "failed",
                          "serve": "passed", "torch": "passed", "sanitizer": "failed"})
        self.assertEqual(parts["tests"]["tests"], {"passed": 1, "failed": 4, "skipped": 1,
                                                   "failed_tests": ["A.Fails", "A.Hangs", "A.Aborts", "A.Crashes"]})
        self.assertIn(r'he said "no\n" and \ud800', parts["tests"]["last_lines"])
        self.assertEqual(parts["attention"]["results"], [{"row": 1}])
        self.assertEqual(parts["throughput"]["results"], 2 * [{"run": 1}])
        self.assertEqual(parts["torch"]["results"], [{"us": None, "x": [None, None], "text": 'a\\b"\ud800'}])
        self.assertEqual(parts["sanitizer"]["verdicts"]["clean"], 0)
        self.assertEqual(len(parts["sanitizer"]["verdicts"]["failed"]), 3 * 8)
        self.assertIn('invalid "read" \\ of \ufffd(', parts["sanitizer"]["last_lines"])

    def test_what_is_not_there_leaves_its_parts_out_by_name(self):
        os.remove(self.tree.at(MODEL))
        self.assertEqual(self.tree.run().returncode, 0)
        _, parts = self.tree.results()
        for name in ("throughput", "serve"):
            self.assertEqual((parts[name]["status"], {*parts[name]["last_lines"]}), ("skipped", {f"no {MODEL}"}))

    def test_the_build_is_for_the_gpus_that_are_there(self):
        self.tree.say("bin/cmake", b"", 0, 'echo "given $*"')
        for capabilities, architectures in (("9.0", "90a-real"), ("8.6\n8.0\n8.6", "80-real;86-real"), ("no driver", "90a-real")):
            with self.subTest(capabilities):
                self.tree.say("bin/nvidia-smi", capabilities.encode() + b"\n")
                self.tree.run()
                given = self.tree.results()[1]["build"]["last_lines"][0]
                self.assertEqual(given, f"given --fresh --preset cuda -DCMAKE_CUDA_ARCHITECTURES={architectures}")

    def test_a_gpu_that_is_not_named_is_unknown(self):
        self.tree.say("bin/nvidia-smi", b"no driver\n", 9)
        self.assertIn("no GPU answers nvidia-smi", self.tree.run().stderr)
        self.assertEqual(self.tree.results()[0]["gpu"], "unknown")

    def test_nothing_runs_without_a_build_and_nothing_of_an_earlier_run_is_told(self):
        self.tree.run()
        self.tree.say("bin/cmake", b"nvcc: no\n", 1)
        self.assertEqual(self.tree.run().returncode, 1)
        _, parts = self.tree.results()
        self.assertEqual((parts["build"]["status"], parts["build"]["last_lines"]), ("failed", ["nvcc: no"]))
        self.assertEqual({part["status"] for name, part in parts.items() if name != "build"}, {"not run"})
        self.assertEqual([name for name, part in parts.items() if "results" in part], [])

    def test_a_run_that_is_ended_leaves_the_results_so_far(self):
        self.tree.say("build-cuda/benchmarks/throughput_bench", b"", 0, 'kill -KILL "$(cat "$HOME/pid")"')
        environment = dict(os.environ, PATH=self.tree.at("bin") + os.pathsep + os.environ["PATH"], SLOW="", HOME=self.tree.folder)
        with subprocess.Popen(["bash", "-c", 'echo $$ > "$HOME/pid"; exec bash scripts/gpu_check.sh'], cwd=self.tree.folder,
                              env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
            self.assertEqual(run.wait(), -9)
        self.assertEqual(self.states(), {"build": "passed", "tests": "passed", "attention": "passed", "throughput": "not run",
                                         "serve": "not run", "torch": "not run", "sanitizer": "not run"})

    def test_a_run_that_is_stopped_ends_what_it_started(self):
        self.tree.say("bin/cmake", b"", 0, 'echo $$ > "$HOME/child"; exec sleep 60')
        child = self.tree.at("child")
        for number, status in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
            environment = dict(os.environ, PATH=self.tree.at("bin") + os.pathsep + os.environ["PATH"], SLOW="", HOME=self.tree.folder)
            with subprocess.Popen(["bash", "scripts/gpu_check.sh"], cwd=self.tree.folder, env=environment, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)) as run:
                deadline = time.monotonic() + 30
                while not (os.path.exists(child) and os.path.getsize(child)) and time.monotonic() < deadline:
                    time.sleep(0.02)
                run.send_signal(number)
                self.assertEqual(run.wait(30), status)
            with open(child, encoding="utf-8") as file:
                pid = int(file.read())
            while running(pid) and time.monotonic() < deadline:
                time.sleep(0.02)
            self.assertFalse(running(pid))
            self.assertEqual({*self.states().values()}, {"not run"})
            os.remove(child)

    def test_the_benchmarks_have_the_options(self):
        if not BENCHMARKS:
            self.skipTest("no folder with benchmarks")
        for bench in ("throughput_bench", "serving/serve_bench"):
            path = self.tree.at("build-cuda/benchmarks/" + bench)
            os.remove(path)
            os.symlink(os.path.join(BENCHMARKS, bench), path)
        self.assertEqual(self.tree.run().returncode, 1)
        _, parts = self.tree.results()
        for part, runs in (("throughput", 2), ("serve", 1)):  # no GPU, or no model: 1. A wrong command line ends with 2.
            self.assertEqual(parts[part]["exit_status"], 1, parts[part])
            errors = [line for line in parts[part]["last_lines"] if re.match(r"\w+_bench: (device cuda:0|\S*models/)", line)]
            self.assertEqual(len(errors), runs, parts[part])

    def test_a_sanitizer_case_without_a_test_is_a_failure(self):
        self.tree.say("build-cuda/tests/kernels/cuda/cuda_norm_test", b"")
        self.assertEqual(self.tree.run().returncode, 1)
        self.assertEqual(self.states()["sanitizer"], "failed")

    def test_a_program_of_kernels_without_a_sanitizer_case_is_a_failure(self):
        self.tree.say("build-cuda/tests/kernels/cuda/cuda_new_test", b"Suite.\n  Name\n")
        self.assertEqual(self.tree.run().returncode, 1)
        _, parts = self.tree.results()
        self.assertIn("cuda_new_test has no case here", parts["sanitizer"]["last_lines"])

    def test_the_second_of_two_runs_does_not_hide_the_first(self):
        self.tree.say("build-cuda/benchmarks/throughput_bench", b"", 0, '[[ "$*" != *--lock-step* ]] || exit 3')
        self.assertEqual(self.tree.run().returncode, 1)
        self.assertEqual(self.tree.results()[1]["throughput"]["exit_status"], 3)

    def test_a_build_without_tests_is_a_failure(self):
        self.tree.say("bin/ctest", b"No tests were found!!!\n", 0, '[[ "$*" != *--no-tests=error* ]] || exit 8')
        self.assertEqual(self.tree.run().returncode, 1)
        self.assertEqual(self.states()["tests"], "failed")

    def test_an_option_is_no_folder(self):
        ended = self.tree.run("--help")
        self.assertEqual(ended.returncode, 0)
        self.assertIn("gpu_check.sh --cases BUILD", ended.stdout)
        ended = self.tree.run("--cases")
        self.assertEqual((ended.returncode, ended.stderr), (2, "gpu_check.sh: --cases wants the folder of a build\n"))
        ended = self.tree.run("--cases", "nowhere")
        self.assertEqual((ended.returncode, ended.stdout), (1, "nowhere has no tests/kernels/cuda: it is not built\n"))
        ended = self.tree.run("--case")
        self.assertEqual((ended.returncode, ended.stdout), (2, ""))
        self.assertIn("no option --case", ended.stderr)

    def test_it_needs_python3(self):
        for tool in ("dirname", "bash"):
            os.makedirs(self.tree.at("few"), exist_ok=True)
            os.symlink(shutil.which(tool), self.tree.at("few/" + tool))
        ended = self.tree.run(path=self.tree.at("few"))
        self.assertEqual((ended.returncode, ended.stdout), (1, ""))
        self.assertIn("no python3", ended.stderr)


if __name__ == "__main__":
    if len(sys.argv) > 1 and os.path.isdir(sys.argv[1]):
        BENCHMARKS = os.path.abspath(sys.argv.pop(1))
    unittest.main()
