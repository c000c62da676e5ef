#!/bin/sh
# The main job on the example file: what it is, whether it is sound, how it would run on one machine
# and on two ranks, and its layers run and compared with the decoded weights. Then ten digits, drawn
# from prompts by the small pipeline with a mixed transformer, and the original quantised anew.
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

# The bf16 original of that transformer into a mixture of at most 5 bits a weight, chosen by measured
# error, and a digit drawn with it.
made=build/digits_5bit.safetensors
show quantize examples/digits/originals/digits_bf16.safetensors -o $made --target-bits 5
show verify examples/digits/originals/digits_bf16.safetensors $made
show generate --model-dir examples/digits --transformer $made --width 64 --height 64 --steps 8 --seed 7 \
  --prompt "a handwritten five" -o build/five.png
