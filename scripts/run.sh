#!/usr/bin/env bash
# From a fresh clone to a streamed answer: installs what is missing, builds, serves the bundled model
# with speculation, asks it one question over the OpenAI API and shows how many guesses were right.
#
#   scripts/run.sh                 ask, show, stop
#   scripts/run.sh --keep          ask, show, and keep serving until Ctrl-C
#   scripts/run.sh --port 9000     on another port than 8000
#   scripts/run.sh --ask 'TEXT'    another question (the bundled model knows arithmetic problems)
#   scripts/run.sh --model DIR     another checkpoint directory
set -euo pipefail
cd "$(dirname "$0")/.."

port=8000
model=models/tiny-v3-mtp3
question='Noa is 28 years old. Elsa is 29 years older than Noa. How old will Elsa be in 23 years?'
keep=false
usage() { sed -n '2,/^set/p' scripts/run.sh | sed -n 's/^# \{0,1\}//p'; }
fail() {
  echo "run: error: $1" >&2
  exit "${2:-1}"
}
while [ $# -gt 0 ]; do
  case "$1" in
    --keep) keep=true ;;
    --port | --ask | --model)
      [ $# -ge 2 ] || fail "$1 needs a value" 2
      case "$1" in
        --port) port=$2 ;;
        --ask) question=$2 ;;
        --model) model=$2 ;;
      esac
      shift
      ;;
    -h | --help)
      usage
      exit 0
      ;;
    *) fail "unknown argument '$1'; see scripts/run.sh --help" 2 ;;
  esac
  shift
done

say() { printf '\n== %s (%d s)\n' "$1" "$SECONDS"; }

say "1/5 Packages"
scripts/setup.sh
url=http://127.0.0.1:$port
if curl -s --max-time 2 -o /dev/null "$url/"; then
  fail "port $port is in use: choose another with --port"
fi

say "2/5 Build"
if [ ! -f build/release/build.ninja ]; then
  gpu=AUTO  # kernels for GPUs take ten minutes to compile on two cores
  if [ ! -e /dev/nvidiactl ]; then gpu=OFF; fi
  cmake --preset release -DOUTRIDER_BUILD_TESTS=OFF -DOUTRIDER_CUDA=$gpu >build-configure.log 2>&1 || {
    cat build-configure.log >&2
    fail "cmake failed"
  }
  grep -e '-- GPU:' build-configure.log || true
  rm -f build-configure.log
fi
cmake --build --preset release --target outrider || fail "the build failed"
outrider=build/release/outrider
"$outrider" --version

say "3/5 Serve $model with speculation"
log=$(mktemp)
server=
stop() {
  if [ -n "$server" ] && kill -0 "$server" 2>/dev/null; then
    kill -TERM "$server"
    wait "$server" || true
  fi
  rm -f "$log"
}
trap stop EXIT
# All drafts that the model can make, to show them; by default it drafts as many as pay.
"$outrider" serve "$model" --port "$port" --speculative-config.adaptive false \
  --per-request-spec-decode-metrics summary \
  2> >(tee "$log" >&2) &
server=$!
for _ in $(seq 600); do
  kill -0 "$server" 2>/dev/null || fail "the server ended: $(tail -n 1 "$log")"
  if curl -sf --max-time 2 -o /dev/null "$url/health"; then break; fi
  sleep 0.1
done
curl -sf --max-time 2 -o /dev/null "$url/health" || fail "no answer from $url/health for 60 s"

say "4/5 One streamed exchange with $url/v1/chat/completions"
echo "user:      $question"
printf 'assistant: '
body=$(QUESTION=$question MODEL=$model python3 -c '
import json, os
print(json.dumps({
    "model": os.environ["MODEL"],
    "messages": [{"role": "user", "content": os.environ["QUESTION"]}],
    "temperature": 0, "max_tokens": 200, "stream": True,
    "stream_options": {"include_usage": True}}))')
# Prints each piece of the answer when it arrives, then the figures of the last event.
show='
import json, sys
last, text = {}, ""
for line in sys.stdin:
    if not line.startswith("data:") or line[5:].strip() == "[DONE]":
        if line.startswith("{"):
            sys.exit("\nrun: error: the server answered " + line)
        continue
    event = json.loads(line[5:])
    if "error" in event:
        sys.exit("\nrun: error: " + event["error"]["message"])
    for choice in event.get("choices", []):
        piece = choice["delta"].get("content") or ""
        text += piece
        print(piece, end="", flush=True)
    last = {**last, **{k: v for k, v in event.items() if v}}
print(flush=True)
if not text:
    sys.exit("run: error: the answer is empty")
usage = last.get("usage", {})
figures = (last.get("metrics") or {}).get("speculative_decoding") or {}
print("\nprompt tokens:", usage.get("prompt_tokens"), " answer tokens:", usage.get("completion_tokens"))
for name, value in figures.items():
    print(f"{name}: {value:.3f}" if isinstance(value, float) else f"{name}: {value}")
'
curl -sS -N --max-time 120 "$url/v1/chat/completions" -H 'Content-Type: application/json' \
  -d "$body" | python3 -c "$show" || fail "the exchange failed"

say "5/5 Acceptance since start, from $url/metrics"
metrics=$(curl -sf --max-time 5 "$url/metrics") || fail "no answer from $url/metrics"
grep -E '^[a-z]*:spec_decode_num_' <<<"$metrics" || fail "$url/metrics shows no speculation"

if $keep; then
  say "Serving on $url/v1 until Ctrl-C; open $url/ in a browser"
  trap 'true' INT TERM
  wait "$server" || true
  exit 0
fi
say "Done, stopping the server (scripts/run.sh --keep keeps it)"
