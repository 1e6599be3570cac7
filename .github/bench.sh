#!/usr/bin/env bash
# Measures two checkouts on the emulated GPU, one after the other: bench.sh BASE CHANGE OUT
# Leaves in OUT: comment.md, bench.json, bench.xml, the two logs and the history. Exits as `harness bench` of the change
# does; a base that cannot be built or measured is said in the comment, and then the change stands alone.
set -uo pipefail

base=$(realpath "$1") change=$(realpath "$2")
mkdir -p "$3" && out=$(realpath "$3")
# One history for both checkouts; the exact counters do not depend on the machine.
export HARNESS_RESULTS_DIR="$out/history"

measure() { # CHECKOUT LOG OPTIONS...
    local checkout=$1 log=$2
    shift 2
    (cd "$checkout" && make .venv/installed && .venv/bin/harness bench "$@") >"$log" 2>&1
}

measure "$base" "$out/base.log" --save-baseline base
base_status=$?
known=$(grep -cs '"baseline":"base"' "$HARNESS_RESULTS_DIR/baselines.jsonl")
compare=()
((${known:-0} > 0)) && compare=(--baseline base)

measure "$change" "$out/change.log" "${compare[@]}" \
    -o "$out/bench.md" -o "$out/bench.json" -o "$out/bench.xml"
status=$?

log_end() { # LOG
    printf '```\n'
    tail -n 20 "$1" | cut -c 1-300
    printf '```\n\n'
}

{
    if ((base_status != 0)); then
        printf '**The base could not be measured, or not all of it** (exit code %d). Its log ends:\n\n' "$base_status"
        log_end "$out/base.log"
    fi
    if [[ -s $out/bench.md ]]; then
        cat "$out/bench.md"
    else
        printf '**The change could not be measured** (exit code %d). Its log ends:\n\n' "$status"
        log_end "$out/change.log"
    fi
} >"$out/comment.md"
tail -n 5 "$out/change.log"
exit "$status"
