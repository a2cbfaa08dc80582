#!/usr/bin/env bash
# Runs the examples on an Ascend device, compares each with the reference, and writes one report to send back.
# Exit code: 0 every example passed, 1 some did not, 2 there is no device or the arguments are wrong.
set -u -o pipefail

usage() {
    cat <<'TEXT'
usage: scripts/ascend_device_check.sh [-o REPORT] [-t TARGET] [EXAMPLE.json ...]

  -o REPORT   the report's path (ascend-device-report-DATE-TIME.txt in this folder)
  -t TARGET   a machine of `autofusion targets` (ascend910b)
  EXAMPLE     op-sequence files (all of examples/)

PYTHON names the interpreter that has autofusion (python3); TIMEOUT the seconds that an example may take (900).
TEXT
}

fail() {
    printf 'ascend_device_check: %s\n' "$1" >&2
    exit 2
}

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd) || exit 2
python=${PYTHON:-python3}
limit=${TIMEOUT:-900}
target=ascend910b
report=ascend-device-report-$(date +%Y%m%d-%H%M%S).txt
while getopts ':o:t:h' option; do
    case $option in
        o) report=$OPTARG ;;
        t) target=$OPTARG ;;
        h) usage && exit 0 ;;
        *) usage >&2 && exit 2 ;;
    esac
done
shift $((OPTIND - 1))
examples=("$@")
if [ ${#examples[@]} -eq 0 ]; then
    examples=("$root"/examples/*.json)
fi
for example in "${examples[@]}"; do
    [ -r "$example" ] || fail "cannot read $example"
done
folder=$(cd -- "$(dirname -- "$report")" 2>/dev/null && pwd) || fail "there is no folder for $report"
report=$folder/$(basename -- "$report")
[ -w "$folder" ] || fail "cannot write to $folder"

why=$("$python" -c 'from autofusion.runtime import acl; print(acl.unavailable() or "")' 2>&1) ||
    fail "$python cannot import autofusion: $why"
[ -z "$why" ] || fail "no device to check: $why"

work=$(mktemp -d) || fail "cannot make a temporary folder"
partial=$folder/.$(basename -- "$report").$$.tmp
trap 'rm -rf -- "$work" "$partial"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

section() {
    printf '\n== %s\n' "$1"
}

# Run a command for the report: what it prints, or why it did not.
show() {
    printf '$ %s\n' "$*"
    timeout --foreground 60 "$@" 2>&1 || printf '(exit code %s)\n' "$?"
}

environment() {
    section environment
    date -u '+%Y-%m-%d %H:%M:%S UTC'
    show uname -srm
    env | LC_ALL=C sort | grep -E '^(ASCEND_|AUTOFUSION_)' || true
    section versions
    local file
    for file in "${ASCEND_HOME_PATH:-}"/{version.cfg,version.info,compiler/version.info} \
        "${ASCEND_TOOLKIT_HOME:-}"/version.cfg /usr/local/Ascend/driver/version.info; do
        [ -r "$file" ] && show cat -- "$file"
    done
    command -v bisheng >/dev/null && show bisheng --version
    show "$python" -m autofusion env
    section device
    if command -v npu-smi >/dev/null; then
        show npu-smi info
    else
        echo 'npu-smi is not in PATH'
    fi
    "$python" -W ignore - 2>&1 <<'TEXT' || true
from autofusion.runtime import acl
with acl.Device() as device:
    print(f"soc {device.soc}, {device.aicores} AI cores, {device.vector_cores} vector cores")
TEXT
}

# The line of the table for one example: its name, OK or FAILED, and the numbers of its JSON.
summary() {
    "$python" - "$1" "$2" "$3" <<'TEXT'
import json
import sys

name, code, path = sys.argv[1:]
try:
    with open(path) as file:
        found = json.load(file)
except ValueError:
    found = {}
device = found.get("machine") == "device"
ok = code == "0" and found.get("ok") is True and found.get("checked") is True and device
parts = ["on the model, not on a device"] if found.get("machine") == "model" else []
parts += [f"{key} {found[key]:.4g}" for key in ("compile_ms", "median_ms", "max_abs_err") if found.get(key) is not None]
parts += [f"launches {found['launches']}"] if "launches" in found else []
print(f"{'OK    ' if ok else 'FAILED'} {name}: {', '.join(parts) or 'exit code ' + code}")
sys.exit(not ok)
TEXT
}

failed=0
: >"$work/table"
: >"$work/details"
for example in "${examples[@]}"; do
    name=$(basename -- "$example" .json)
    began=$(date +%s)
    timeout --foreground "$limit" "$python" -m autofusion run "$example" --target "$target" --check --json \
        >"$work/stdout" 2>"$work/stderr"
    code=$?
    summary "$name" "$code" "$work/stdout" >"$work/line" || failed=$((failed + 1))
    tee -a "$work/table" <"$work/line"
    {
        section "$name: exit code $code, $(($(date +%s) - began)) s"
        cat -- "$work/stdout"
        head -c 20000 -- "$work/stderr"
    } >>"$work/details"
done

{
    printf 'graph-autofusion on an Ascend device, target %s: %s of %s examples failed\n' \
        "$target" "$failed" "${#examples[@]}"
    section results
    cat -- "$work/table"
    environment
    cat -- "$work/details"
} >"$partial" || fail "cannot write $partial"
mv -f -- "$partial" "$report" || fail "cannot write $report"
printf 'report: %s\n' "$report"
[ "$failed" -eq 0 ]
