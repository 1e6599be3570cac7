#!/usr/bin/env bash
# The action's work: verify.sh OUT EXPECTED GPU, with a target on each line of standard input: a launch file, or the command
# of a program. Leaves N.json, N.sarif and N.xml of each in OUT, and exits 1 unless every verdict is the expected one.
set -uo pipefail

out=$1 expected=$2 gpu=$3
mkdir -p "$out"
number=0 status=0
while read -r -a words || ((${#words[@]})); do
    ((${#words[@]})) || continue
    number=$((number + 1))
    files=(-o "$out/$number.json" -o "$out/$number.sarif" -o "$out/$number.xml")
    if [[ ${words[0]} == *.toml ]]; then
        python -m emugpu verify "${files[@]}" "${words[@]}" </dev/null
    else
        python -m emugpu verify "${files[@]}" --gpu "$gpu" -- "${words[@]}" </dev/null
    fi
    verdict=$(python -c 'import json, sys; print(json.load(open(sys.argv[1]))["verdict"])' "$out/$number.json" 2>/dev/null)
    if [[ $verdict != "$expected" ]]; then
        echo "::error::${words[*]}: the verdict is ${verdict:-none}, and was to be $expected"
        status=1
    fi
done
if ((!number)); then
    echo "::error::there is no target; name launch files or programs, one on each line"
    status=1
fi
exit $status
