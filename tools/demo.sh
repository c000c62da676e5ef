#!/bin/sh
# The main job on the example file: what it is, whether it is sound, how it would run on one machine
# and on two ranks, and its layers run and compared with the decoded weights. Then ten digits, drawn
# from prompts by the small pipeline with a mixed transformer.
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

out=build/digits.png
show generate --model-dir examples/digits --transformer examples/digits/diffusion_models/digits_mixed.safetensors \
  --width 64 --height 64 --steps 8 --seed 7 --sheet $out \
  --prompt "a handwritten zero" --prompt "a handwritten one" --prompt "a handwritten two" \
  --prompt "a handwritten three" --prompt "a handwritten four" --prompt "a handwritten five" \
  --prompt "a handwritten six" --prompt "a handwritten seven" --prompt "a handwritten eight" \
  --prompt "a handwritten nine"
