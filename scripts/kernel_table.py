#!/usr/bin/env python3
"""What nvcc makes of the CUDA kernels, one row per kernel and GPU architecture, without a GPU.

    scripts/kernel_table.py            prints the table
    scripts/kernel_table.py --write    puts it into docs/kernels.md, between its markers
    scripts/kernel_table.py --check    fails if it is not the one in docs/kernels.md, or if a kernel breaks a rule

Registers, static shared memory and spills come from ptxas, instructions from the machine code (nvdisasm, of PyPI's
nvidia-cuda-nvdisasm; without it those columns stay empty and are not checked). Rules: no spills, no local memory; where a source
multiplies matrices its machine code has HMMA, and where it copies asynchronously LDGSTS. "per HMMA" are the instructions of the
loop with the most HMMA, divided by these. All instances are checked; the table has those for BF16, as those for F16 differ little.
"""
import argparse
import concurrent.futures
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOC = ROOT / "docs" / "kernels.md"
BEGIN, END = "<!-- kernel table: begin -->", "<!-- kernel table: end -->"
ARCHITECTURES = ("sm_80", "sm_90a")
FIELDS = ("kernel", "arch", "registers", "shared bytes", "spilled bytes", "instructions", "HMMA", "LDSM", "LDGSTS", "per HMMA")


# Kernel: why it may use local memory.
MAY_SPILL = {"rope_table_kernel": "sine and cosine in double reduce huge arguments on the stack; once a step, some thousand threads"}


def find_nvdisasm():
    found = shutil.which("nvdisasm")
    if found:
        return found
    for prefix in (pathlib.Path(sys.prefix), ROOT / ".venv"):
        for path in prefix.glob("lib/python*/site-packages/nvidia/**/bin/nvdisasm"):
            path.chmod(path.stat().st_mode | 0o111)
            return str(path)
    return None


def dtypes():
    body = re.search(r"enum class DType[^{]*{(.*?)}", (ROOT / "src/core/dtype.h").read_text(), re.S).group(1)
    return [name.strip()[1:] for name in body.split(",") if name.strip()]


DTYPES = dtypes()


def demangled(name):
    full = subprocess.run(["c++filt", name], capture_output=True, text=True, check=True).stdout.strip()
    full = re.sub(r"quire::cuda::|\(anonymous namespace\)::|^void ", "", full)
    full = re.sub(r"\(quire::DType\)(\d+)", lambda match: DTYPES[int(match.group(1))], full)
    full = re.sub(r"\(([A-Za-z ]+)\)(\d)", r"\2", full)  # (int)64
    return full.split(">(")[0] + ">" if ">(" in full else full.split("(")[0]


def resources(log):
    """{mangled name: (registers, static shared bytes, spilled bytes)} from ptxas -v."""
    result = {}
    name = None
    for line in log.splitlines():
        if match := re.search(r"Compiling entry function '(\S+)'", line):
            name, spilled = match.group(1), 0
        elif match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            spilled = sum(int(group) for group in match.groups())
        elif name and (match := re.search(r"Used (\d+) registers", line)):
            shared = re.search(r"(\d+) bytes smem", line)
            result[name] = (int(match.group(1)), int(shared.group(1)) if shared else 0, spilled)
            name = None
    return result


def functions(disassembly):
    """{mangled name: [(label or None, mnemonic, branch target or None)]} in order."""
    result, body = {}, None
    for line in disassembly.splitlines():
        if match := re.match(r"\s*\.section\s+\.text\.(\S+?),", line):
            body = result.setdefault(match.group(1), [])
        elif match := re.match(r"\s*(\.L_x_\d+):", line):
            if body is not None:
                body.append((match.group(1), None, None))
        elif match := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9]*)(\S*)(.*)", line):
            target = re.search(r"\((\.L_x_\d+)\)", match.group(3)) if match.group(1) == "BRA" else None
            if body is not None:
                body.append((None, match.group(1), target.group(1) if target else None))
    return result


def counts(body):
    names = [mnemonic for _, mnemonic, _ in body if mnemonic and mnemonic != "NOP"]
    labels = {label: at for at, (label, _, _) in enumerate(body) if label}
    best = None
    for at, (_, _, target) in enumerate(body):
        if target in labels and labels[target] < at:
            inside = [mnemonic for _, mnemonic, _ in body[labels[target] : at + 1] if mnemonic and mnemonic != "NOP"]
            products = inside.count("HMMA")
            if products and (best is None or (products, -len(inside)) > (best[0], -best[1])):
                best = (products, len(inside))
    return {
        "instructions": len(names),
        "HMMA": names.count("HMMA"),
        "LDSM": names.count("LDSM"),
        "LDGSTS": names.count("LDGSTS"),
        "local": names.count("LDL") + names.count("STL"),
        "per HMMA": f"{best[1] / best[0]:.1f}" if best else "",
    }


def compile_one(source, arch, nvdisasm, folder):
    cubin = folder / f"{source.stem}.{arch}.cubin"
    command = ["nvcc", "-std=c++20", "-O3", "-cubin", f"-arch={arch}", "-Xptxas", "-v", f"-I{ROOT}", f"-I{ROOT}/src",
               f"-I{ROOT}/include", str(source), "-o", str(cubin)]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"kernel_table: {' '.join(command)}\n{run.stderr}")
    bodies = {}
    if nvdisasm:
        bodies = functions(subprocess.run([nvdisasm, "-c", str(cubin)], capture_output=True, text=True, check=True).stdout)
    rows = []
    for name, (registers, shared, spilled) in resources(run.stderr).items():
        row = {"kernel": demangled(name), "arch": arch, "registers": registers, "shared bytes": shared, "spilled bytes": spilled}
        if name in bodies:
            row |= counts(bodies[name])
        rows.append(row)
    return rows


def broken_rules(rows, sources):
    problems = []
    for row in rows:
        where = f"{row['kernel']} for {row['arch']}"
        if row["kernel"] in MAY_SPILL:
            continue
        if row["spilled bytes"]:
            problems.append(f"{where} spills {row['spilled bytes']} bytes")
        if row.get("local"):
            problems.append(f"{where} has {row['local']} accesses to local memory")
        if "HMMA" in row and "attention_kernel" in row["kernel"] and "combine" not in row["kernel"]:
            problems += [f"{where} has no {need}" for need in ("HMMA", "LDSM", "LDGSTS") if not row[need]]
    if not rows:
        problems.append(f"no kernels in {len(sources)} sources")
    return problems


def table(rows):
    lines = ["| " + " | ".join(FIELDS) + " |", "|" + " --- |" * len(FIELDS)]
    shown = [row for row in rows if "Half" not in row["kernel"]]
    for row in sorted(shown, key=lambda r: (r["kernel"], r["arch"])):
        lines.append("| " + " | ".join(f"`{row[f]}`" if f == "kernel" else str(row.get(f, "")) for f in FIELDS) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if not shutil.which("nvcc"):
        print("kernel_table: no nvcc")
        return 77  # skipped
    nvdisasm = find_nvdisasm()
    sources = sorted((ROOT / "kernels" / "cuda").glob("*.cu"))
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(compile_one, source, arch, nvdisasm, pathlib.Path(folder)) for source in sources for arch in ARCHITECTURES]
        rows = [row for job in jobs for row in job.result()]
    made = table(rows)
    problems = broken_rules(rows, sources)
    text = DOC.read_text() if DOC.exists() else ""
    if options.write:
        before, rest = text.split(BEGIN)
        DOC.write_text(f"{before}{BEGIN}\n{made}\n{END}{rest.split(END)[1]}")
    elif options.check and nvdisasm and f"{BEGIN}\n{made}\n{END}" not in text:
        problems.append("docs/kernels.md holds another table: run scripts/kernel_table.py --write and look at what changed")
    if not options.write:
        print(made)
    if not nvdisasm:
        print("kernel_table: no nvdisasm, so the machine code was not looked at")
    for problem in problems:
        print(f"kernel_table: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
