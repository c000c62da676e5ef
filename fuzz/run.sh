#!/bin/sh
# Runs each libFuzzer entry for some seconds from the committed corpus, which stays as it is.
# usage: fuzz/run.sh BUILD_FOLDER SECONDS
set -eu
build=$1
seconds=$2
corpus=$(dirname "$0")/corpus
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for entry in container index markers; do
  cp -r "$corpus/$entry" "$work/$entry"
  if ! "$build/fuzz/fuzz_$entry" -max_total_time="$seconds" -rss_limit_mb=1024 -timeout=10 -max_len=65536 \
      -artifact_prefix="$work/" -print_final_stats=1 "$work/$entry" >"$work/log" 2>&1; then
    cat "$work/log"
    for crash in "$work"/crash-* "$work"/timeout-* "$work"/oom-*; do
      [ -e "$crash" ] && { echo "input, in base64:"; base64 "$crash"; }
    done
    exit 1
  fi
  echo "fuzz $entry: $(sed -n 's/^stat::number_of_executed_units: *//p' "$work/log") runs in $seconds s, no failure"
done
