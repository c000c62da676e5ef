#!/bin/sh
# The main job on the example file: what it is, whether it is sound, how it would run on one machine
# and on two ranks, and its layers run and compared with the decoded weights.
# usage: demo.sh PARFAIT FILE
set -eu
parfait=$1
file=$2
show() {
  printf '\n$ parfait'
  printf ' %s' "$@"
  printf '\n'
  "$parfait" "$@"
}
show inspect "$file"
show check --deep "$file"
show plan "$file"
show plan "$file" --tp 2 --layers 'encoder.layer.0.*'
show run "$file" --rows 256 --verify
