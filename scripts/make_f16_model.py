#!/usr/bin/env python3
"""Writes an F16 copy of a quantised GGUF file: every matrix dequantised and rounded to half precision, all else as it is.

    make_f16_model.py IN.gguf OUT.gguf

The copy is for comparing speed on F16 weights; it holds no more of the model than the quantised file did.
"""
import os
import sys

import gguf
import numpy

GENERAL_FILE_TYPE_F16 = 1


def copy_field(writer, field):
    kind = field.types[0]
    item = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
    writer.add_key_value(field.name, field.contents(), kind, sub_type=item)


def main():
    if len(sys.argv) != 3 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    source, target = sys.argv[1:]
    if not os.path.isfile(source):
        sys.exit(f"make_f16_model: there is no file {source}")
    if os.path.exists(target) and os.path.samefile(source, target):
        sys.exit("make_f16_model: the copy would overwrite the model")
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    part = target + ".part"
    writer = gguf.GGUFWriter(part, architecture)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue  # the header's own fields, and what the writer sets
        copy_field(writer, field)
    writer.add_file_type(GENERAL_FILE_TYPE_F16)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        is_matrix = len(tensor.shape) > 1
        writer.add_tensor(tensor.name, values.astype(numpy.float16 if is_matrix else numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(part, target)


if __name__ == "__main__":
    main()
