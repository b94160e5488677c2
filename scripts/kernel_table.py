#!/usr/bin/env python3
"""What nvcc makes of the CUDA kernels, one row per kernel and GPU architecture, without a GPU; and what a GPU will see of them.

    scripts/kernel_table.py            prints the tables
    scripts/kernel_table.py --write    puts them into docs/kernels.md, between their markers
    scripts/kernel_table.py --check    fails if they are not those in docs/kernels.md, or if a kernel breaks a rule

Registers, static shared memory and spills come from ptxas, instructions from the machine code (nvdisasm, of PyPI's
nvidia-cuda-nvdisasm; without it those columns stay empty, are not checked, and --write refuses). Rules: no spills and no local memory but where MAY_SPILL says why; where a source
multiplies matrices its machine code has HMMA, and where it copies asynchronously LDGSTS (NEEDED). "per HMMA" are the instructions of the
loop with the most HMMA, divided by these. All instances are checked; the table has those for BF16, as those for F16 differ little.

The second table is arithmetic: registers for sm_90a of the first, threads, dynamic shared memory and bytes in flight of a block from
docs/kernels.md's table of what kernels move (cuda_traffic_table_test), and how many blocks an SM of an H200 has room for. By
Little's law it must have 4.8 TB/s x 0.75 us / 132 SMs, some 27 KB, in flight; a kernel with less breaks a rule. The last columns are the same for an SM with 100 KB of shared memory and 1,536
threads, as those of sm_86, sm_89 and sm_120, with the registers for sm_80; such a GPU's memory needs less, some 5 KB an SM (L40S: 864 GB/s,
142 SMs).
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
MARKS = "<!-- {} table: begin -->", "<!-- {} table: end -->"
ARCHITECTURES = ("sm_80", "sm_90a")
FIELDS = ("kernel", "arch", "registers", "shared bytes", "spilled bytes", "instructions", "HMMA", "LDSM", "LDGSTS", "per HMMA")


# An SM of an H200 (compute capability 9.0): registers are given to warps 256 at a time, from four banks.
SM_REGISTERS, BLOCK_RESERVED = 65536, 1024
H200 = {"threads": 2048, "blocks": 32, "shared": 228 * 1024}
SMALL = {"threads": 1536, "blocks": 16, "shared": 100 * 1024}  # sm_86, the least of sm_86, sm_89 and sm_120
NEEDED_IN_FLIGHT = 27 * 1024


# Kernel: bytes of local memory it may use, and why.
MAY_SPILL = {
    "rope_table_kernel": (64, "sine and cosine in double reduce huge arguments on the stack; once a step, some thousand threads"),
    # Without that function (rcp.approx) the loop itself spills eight registers.
    "prefill_attention_kernel<{}, PrefillConfig<128, 2> >": (8, "one register, in the function that a division calls where divisor or "
                                                             "result is below 2^-126: for soft-capped scores of 43 caps and more"),
}


# What the machine code of a kernel must have, by how its name begins.
NEEDED = {
    "prefill_attention_kernel": ("HMMA", "LDSM", "LDGSTS"),
    "decode_attention_kernel": ("HMMA", "LDSM", "LDGSTS"),
    "matmul_quantized_kernel": ("HMMA",),  # its weights go from memory to registers
}


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
        allowed, _ = MAY_SPILL.get(row["kernel"].replace("BFloat16", "{}").replace("Half", "{}"), (0, ""))
        if row["spilled bytes"] > allowed:
            problems.append(f"{where} spills {row['spilled bytes']} bytes")
        if row.get("local") and not allowed:
            problems.append(f"{where} has {row['local']} accesses to local memory")
        if "HMMA" in row:
            problems += [f"{where} has no {need}" for need in NEEDED.get(row["kernel"].split("<")[0], ()) if not row[need]]
    problems += [f"there is no {name}" for name in NEEDED if not any(row["kernel"].startswith(f"{name}<") for row in rows)]
    if not rows:
        problems.append(f"no kernels in {len(sources)} sources")
    return problems


def table(rows):
    lines = ["| " + " | ".join(FIELDS) + " |", "|" + " --- |" * len(FIELDS)]
    shown = [row for row in rows if "Half" not in row["kernel"]]
    for row in sorted(shown, key=lambda r: (r["kernel"], r["arch"])):
        lines.append("| " + " | ".join(f"`{row[f]}`" if f == "kernel" else str(row.get(f, "")) for f in FIELDS) + " |")
    return "\n".join(lines)


def resident_blocks(sm, registers, threads, shared):
    warps = (threads + 31) // 32
    by_registers = SM_REGISTERS // 4 // ((registers * 32 + 255) // 256 * 256) * 4 // warps
    by_shared = sm["shared"] // ((shared + BLOCK_RESERVED + 127) // 128 * 128)
    return min(by_registers, by_shared, sm["threads"] // (warps * 32), sm["blocks"])


def seen_by_gpu(rows, text):
    """(table, kernels that fit no SM or have too little in flight)"""
    compiled = {(row["kernel"], row["arch"]): row for row in rows}
    lines = ["| kernel | blocks per SM | occupancy | in flight per SM | sm_86, sm_89, sm_120: blocks per SM | in flight per SM |"]
    lines.append("|" + " --- |" * 6)
    short = []
    for line in part(text, "traffic").splitlines()[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        kernel, (threads, dynamic, flying) = cells[0].strip("`"), cells[-3:]
        if not threads:
            continue
        def resident(sm, arch):
            row = compiled[kernel, arch]
            return resident_blocks(sm, row["registers"], int(threads), row["shared bytes"] + int(dynamic or 0))

        blocks, small = resident(H200, "sm_90a"), resident(SMALL, "sm_80")
        total = blocks * int(flying)
        lines.append(f"| `{kernel}` | {blocks} | {blocks * int(threads) / H200['threads']:.0%} | {total / 1024:.0f} KB "
                     f"| {small} | {small * int(flying) / 1024:.0f} KB |")
        if small == 0:
            short.append(f"{kernel} does not fit an SM of sm_86")
        if total < NEEDED_IN_FLIGHT:
            short.append(f"{kernel} has {total} bytes in flight per SM, not {NEEDED_IN_FLIGHT}")
    return "\n".join(lines), short


def part(text, name):
    begin, end = (mark.format(name) for mark in MARKS)
    return text.split(begin + "\n")[1].split("\n" + end)[0]


def of_ptxas(table):
    """The columns that need no machine code."""
    return [line.split("|")[: 1 + FIELDS.index("instructions")] for line in table.splitlines()]


def with_part(text, name, table):
    begin, end = (mark.format(name) for mark in MARKS)
    before, rest = text.split(begin)
    return f"{before}{begin}\n{table}\n{end}{rest.split(end)[1]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if not shutil.which("nvcc"):
        print("kernel_table: no nvcc")
        return 77  # skipped
    nvdisasm = find_nvdisasm()
    if options.write and not nvdisasm:
        parser.error("--write needs nvdisasm (PyPI's nvidia-cuda-nvdisasm)")
    sources = sorted((ROOT / "kernels" / "cuda").glob("*.cu"))
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(compile_one, source, arch, nvdisasm, pathlib.Path(folder)) for source in sources for arch in ARCHITECTURES]
        rows = [row for job in jobs for row in job.result()]
    text = DOC.read_text()
    seen, short = seen_by_gpu(rows, text)
    made = {"kernel": table(rows), "gpu": seen}
    problems = broken_rules(rows, sources) + short
    for name, made_part in made.items():
        if options.write:
            text = with_part(text, name, made_part)
        elif options.check and (part(text, name) != made_part if nvdisasm or name == "gpu" else
                                of_ptxas(part(text, name)) != of_ptxas(made_part)):
            problems.append(f"docs/kernels.md holds another {name} table: run scripts/kernel_table.py --write and look at what changed")
    if options.write:
        DOC.write_text(text)
    else:
        print(*made.values(), sep="\n\n")
    if not nvdisasm:
        print("kernel_table: no nvdisasm, so the machine code was not looked at")
    for problem in problems:
        print(f"kernel_table: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
