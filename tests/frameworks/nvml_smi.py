"""The machine's own `nvidia-smi`, which asks NVML: plain, a list, and a query.

    nvml_smi.py smi
"""

import shutil
import subprocess
import sys

from said import absent, item, run, same

# What stays the same while other programs come and go.
ASKED = "index,name,uuid,pci.bus_id,memory.total,compute_cap,driver_version"


def said(*arguments):
    """What it writes; it has to end well."""
    outcome = subprocess.run(["nvidia-smi", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if outcome.returncode != 0:
        sys.exit(f"nvidia-smi {' '.join(arguments)}: status {outcome.returncode}: {outcome.stdout}")
    return outcome.stdout.strip()


@item
def smi():
    """Devices are the same ones by the list, by the query, and in the table."""
    if shutil.which("nvidia-smi") is None:
        absent("nvidia-smi is not on this machine")
    devices = said("-L").splitlines()
    rows = said(f"--query-gpu={ASKED}", "--format=csv,noheader").splitlines()
    assert len(devices) == len(rows) > 0, f"{devices} and {rows}"
    table = said()
    assert "NVIDIA-SMI" in table, table
    for index, (device, row) in enumerate(zip(devices, rows)):
        cells = [cell.strip() for cell in row.split(",")]
        assert cells[2] in device, f"{device} and {row}"
        assert cells[3].split(":", 1)[1].lower() in table.lower(), f"{row} is not in {table}"
        same(f"device_{index}", device)
        same(f"row_{index}", row)


run()
