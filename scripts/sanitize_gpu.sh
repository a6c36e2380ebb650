#!/usr/bin/env bash
# Runs the Hopper kernels under compute-sanitizer, on shapes that are small enough for every tool.
#   scripts/sanitize_gpu.sh BUILD_DIR [TOOL...]     tools: memcheck racecheck synccheck initcheck
# racecheck follows arrivals of single threads only: give it a build with -DOUTRIDER_CUDA_RACECHECK=ON.
# Needs a Hopper GPU. Logs go to BUILD_DIR/sanitize; the last lines say what was found.
set -u
build=${1:?usage: scripts/sanitize_gpu.sh BUILD_DIR [TOOL...]}
shift
tools=("$@")
[ ${#tools[@]} -gt 0 ] || tools=(memcheck racecheck synccheck initcheck)
logs=$build/sanitize
mkdir -p "$logs"

# Program, and the tests that go through every kernel of it in little time.
programs="
kernels/cuda/choose_entries_test *SmallForTheSanitizers
kernels/cuda/compress_entries_test *MatchDoublePrecision*
kernels/cuda/compressed_attention_test *SmallForTheSanitizers
kernels/cuda/draw_test *Sanitizer:*Places
kernels/cuda/expert_matmul_test */1:*/2:*/5:*/7:*/8
kernels/cuda/expert_router_test *BreaksTiesAsTheCpu/*:TokenRouterTest.*
kernels/cuda/gqa_attention_test *Growing*2_2*:*Growing*10_2*:*Growing*48_1*:*InPieces*2_2*
kernels/cuda/head_rows_test HeadRowsTest.*:*/HeadRowsTest.*
kernels/cuda/hyper_rows_test *Leave*hidden36:*Leave*hidden4096:*SmallForTheSanitizers/*
kernels/cuda/head_projection_test *heads3*:*heads8*
kernels/cuda/index_keys_test *
kernels/cuda/index_scores_test *SmallForTheSanitizers/*:SparseRowsTest.*
kernels/cuda/kda_rows_test *
kernels/cuda/listed_attention_test *ForTheSanitizers
kernels/cuda/matmul_test *EveryBody*Ragged*:*EveryBody*GateUp*:*Replays*Small:*GroupsRead*/F8Power:*GroupsRead*/Bf16
kernels/cuda/mla_decode_test MlaDecodeTest.S*
kernels/cuda/norm_rows_test *hidden256*:*hidden36*:NormRowsCases.*:NormRowsLastTermTest.*
kernels/cuda/query_rows_test *
kernels/cuda/prompt_rows_test PromptRowsTest.*
kernels/cuda/step_rows_test WriteLatentTest.*:StepRowsTest.*
ops/cuda/compressed_cuda_ops_test *
ops/cuda/cuda_ops_test *SmallForTheSanitizers:*TheLargest*:*Embedded:*RowsMove*
ops/cuda/delta_cuda_ops_test *SmallForTheSanitizers
ops/cuda/sparse_cuda_ops_test *EntriesAndKeys/few_heads*:*ChoiceAndAttention/few_heads*:SparseChoiceTest.*
ops/cuda/cuda_sampler_test *DraftsStay*:*AmongTokens*:*VerificationComesTo*:*LaterResultsOfDrafts*:BlockSamplerTest.*
"

sanitize() {
  local tool=$1 program=$2 filter=$3
  local log=$logs/$tool-$(basename "$program").log
  local begin=$SECONDS
  timeout "${SANITIZE_TIMEOUT:-300}" compute-sanitizer --tool "$tool" --error-exitcode 9 \
    "$build/tests/$program" --gtest_filter="$filter" >"$log" 2>&1
  local status=$?
  echo "$tool $(basename "$program"): exit $status, $((SECONDS - begin)) s," \
    "$(grep -E 'SUMMARY' "$log" | tail -1)" "$(grep -cE '^\[       OK' "$log") tests"
  return $status
}

failed=0
pids=()
for tool in "${tools[@]}"; do
  while read -r program filter; do
    [ -n "$program" ] || continue
    sanitize "$tool" "$program" "$filter" &
    pids+=($!)
  done <<<"$programs"
done
for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
exit $failed
