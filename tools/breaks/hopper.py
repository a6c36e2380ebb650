"""The kernels for Hopper and the network made of them. The tests need a GPU: where there is none,
--keep builds the broken programs and says how to run them elsewhere.
"""
from mistake import Break

CMAKE = ("-DOUTRIDER_CUDA=ON",)

TOPICS = {
    "cut": "how K is cut follows from the weight alone",
    "segments": "segments are added up in order",
    "fold": "partial results of attention are folded once they are there",
    "terms": "all of a row's experts are added to the residual",
    "choice": "experts are chosen as on the CPU",
    "lists": "each expert has a list of the rows that chose it",
    "race": "the noise of a draw belongs to its position",
    "penalties": "a penalty sees what comes before the row",
    "drafts": "a draft is accepted only if it was drawn, and read where it was drawn",
    "rotation": "queries are rotated by their own positions",
    "pieces": "a piece of a prompt sees what came before it",
    "prompts": "several prompts run in one pass",
    "angles": "absorbed queries are rotated by their own positions",
    "shared": "the shared experts are the checkpoint's",
    "capability": "other GPUs are refused at the start",
    "gathered": "rows go to the places of all their choices",
    "batches": "where prompts begin is made anew for each batch",
    "memory": "what steps need is there from the start, and a lack of memory is told in words",
    "progress": "loading ends at all that is read",
    "scored": "an index score's bits do not depend on the step, and rows that are scored together fit",
    "chosen": "the entries that an indexer chooses are those of a processor",
    "listed": "a row reads the entries of its own list, folded at fixed places",
}

ADDED_IN_ORDER = """\
  for (int first = 0; first < args.units; first += args.segment_units) {
    SumSegment<Body, kColumns>(shared, group, min(args.segment_units, args.units - first), cursor,
                               held, sums);
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) total[i] = __fadd_rn(total[i], sums[i]);
    if (first + args.segment_units < args.units) cursor.Release(shared, held);
  }
"""

FIRST_ADDED_LAST = """\
  float head[kColumns / 2];
  for (int first = 0; first < args.units; first += args.segment_units) {
    SumSegment<Body, kColumns>(shared, group, min(args.segment_units, args.units - first), cursor,
                               held, sums);
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) {
      if (first == 0) {
        head[i] = sums[i];
      } else {
        total[i] = __fadd_rn(total[i], sums[i]);
      }
    }
    if (first + args.segment_units < args.units) cursor.Release(shared, held);
  }
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) total[i] = __fadd_rn(total[i], head[i]);
"""

BREAKS = (
    Break("cut", "more than 64 rows are summed in one segment", "kernels/cuda/matmul.cc",
          "  const MatMulSegments segments = SegmentsOf(w);\n  const bool numbered",
          "  MatMulSegments segments = SegmentsOf(w);\n"
          "  if (params.rows > 64) segments = {1, Ceil(w.k, kWeightColumns) * kWeightColumns};\n"
          "  const bool numbered",
          "matmul_test", "Hopper/MatMulTest.ARowsBitsDependOnItAlone/Bf16Segments"),
    Break("segments", "blocks that sum all segments add the first one last",
          "kernels/cuda/matmul_sums_sm90.cuh", ADDED_IN_ORDER, FIRST_ADDED_LAST,
          "matmul_test", "Hopper/MatMulTest.ARowsBitsDependOnItAlone/Bf16Segments"),
    Break("fold", "what a block folds to rehearse stays", "kernels/cuda/mla_decode_merge_sm90.cuh",
          "for (int last = rehearses ? 0 : 1; last < 2; ++last) {",
          "for (int last = rehearses ? 0 : 1; last < (rehearses ? 1 : 2); ++last) {",
          "mla_decode_test", "*"),
    Break("fold", "a block that has rehearsed does not wait", "kernels/cuda/mla_decode_merge_sm90.cuh",
          "if (tile.count > 0 && last == 1) Wait", "if (tile.count > 0 && !rehearses) Wait",
          "mla_decode_test", "*"),
    Break("terms", "the last expert of a row is left out", "kernels/cuda/norm_rows.cu",
          "if (begin + i >= params.num_terms) break;", "if (begin + i + 1 >= params.num_terms) break;",
          "norm_rows_test", "*MatchesTheCpuReferenceAndKeepsBits*"),
    Break("choice", "of equal experts the later one is chosen", "kernels/cuda/expert_choice.cuh",
          "keys[i + step] > keys[i];", "keys[i + step] >= keys[i];",
          "expert_router_test", "*"),
    Break("choice", "an expert whose score is NaN counts as taken", "kernels/cuda/expert_choice.cuh",
          "OrderKey(fmaxf(value, kLeastChoice))", "OrderKey(value)",
          "expert_router_test", "*TakesNanAsTheCpu*"),
    Break("lists", "with many rows each block lists the first block's choices",
          "kernels/cuda/expert_router.cu",
          "routing.expert_ids[static_cast<int64_t>(first_row + local) * choices + k]",
          "routing.expert_ids[static_cast<int64_t>(local) * choices + k]",
          "expert_router_test", "*ManyRows*:*ARowsBitsDependOnItAlone*"),
    Break("terms", "with many rows every third expert of a row is left out",
          "kernels/cuda/norm_rows.cu",
          "begin += kTogether) {", "begin += kTogether + (kTogether == 2)) {",
          "norm_rows_test", "*MatchesTheCpuReferenceAndKeepsBits*"),
    Break("race", "the noise is that of the position before", "kernels/cuda/draw.cu",
          "drawn.position = params.logit_positions[drawn.row];",
          "drawn.position = params.logit_positions[drawn.row] - 1;",
          "draw_test", "DrawTest.DrawsTheCpusTokens"),
    Break("penalties", "a token's count leaves out the drafts before the row", "kernels/cuda/draw.cu",
          "      ++count;\n      shared.draft_is_listed[j] = true;",
          "      shared.draft_is_listed[j] = true;",
          "cuda_sampler_test", "*"),
    Break("drafts", "drafts are accepted one further", "kernels/cuda/verify_drafts.cu",
          "    num_accepted = begin + count;\n",
          "    num_accepted = min(begin + count + 1, rows - 1);\n",
          "cuda_sampler_test", "CudaSamplerTest.VerifiesAsTheCpuDoesWhateverTheFields"),
    Break("drafts", "a request's last token goes where its first draft does",
          "kernels/cuda/verify_drafts.cu", "params.kept_tokens[verified.last_token] = last;",
          "params.kept_tokens[verified.last_token + 1] = last;",
          "cuda_sampler_test", "CudaSamplerTest.L*:*WhatVerificationComesToStays"),
    Break("drafts", "one more draft counts as rejected", "kernels/cuda/verify_drafts.cu",
          "rows - 1 - num_accepted", "rows - num_accepted",
          "cuda_sampler_test", "*WhatVerificationComesToStays"),
    Break("drafts", "a row that goes back still sees the keys behind it", "kernels/cuda/move_rows.cu",
          "  params.seq_lens[row] -= back;\n", "",
          "cuda_ops_test", "CudaOpsTest.RowsMoveToWhereTheDeviceKnows"),
    Break("drafts", "a draft goes where the next one does", "kernels/cuda/draw.cu",
          "results.places[drawn.row] :", "results.places[drawn.row] + 1 :",
          "cuda_sampler_test", "CudaSamplerTest.DraftsStayOnTheDevice"),
    Break("drafts", "a row's embedding is the first draft's", "kernels/cuda/tensor_rows.cu",
          "from_row = max(params.kept_tokens[-2 - from_row], 0);", "from_row = max(params.kept_tokens[0], 0);",
          "cuda_ops_test", "CudaOpsTest.TokensOnTheDeviceAreEmbedded"),
    Break("drafts", "drafts are lost when results need more memory", "ops/cuda/step_results.cc",
          "if (kept > 0) {", "if (kept > 1000000) {",
          "cuda_sampler_test", "CudaSamplerTest.DraftsStayOnTheDevice"),
    Break("drafts", "penalties read drafts that nobody has read", "ops/cuda/cuda_sampler.cc",
          "  if (processes) now_.ReadDrafts(ops_);\n", "",
          "cuda_sampler_test", "CudaSamplerTest.DraftsStayOnTheDevice"),
    Break("drafts", "a drafter's tokens stay its own", "kernels/cuda/draw.cu",
          "results.ids != nullptr && token >= 0 ? results.ids[token] : token;", "token;",
          "cuda_sampler_test", "CudaSamplerTest.DrawsAmongTokensOfRows"),
    Break("rotation", "prompts' queries are rotated as if the prompt were the step's first rows",
          "layers/mla_attention.cc",
          "AnglesOf(rotary, first, end - first)", "AnglesOf(rotary, 0, end - first)",
          "families_test", "Families/FamilyTest.BitsDoNotDependOnTheStep/glm"),
    Break("pieces", "a piece of a prompt sees itself alone", "ops/cuda/cuda_step_inputs.cc",
          "const int32_t keys = KeysOf(request);", "const int32_t keys = request.query_length;",
          "families_test", "Families/FamilyTest.EveryLayerBesideTheCpus/v2_lite"),
    Break("prompts", "keys of a prompt are counted from the first prompt's", "kernels/cuda/prompt_rows.cu",
          "const int position = row - params.key_start_loc[prompt];", "const int position = row;",
          "prompt_rows_test", "PromptRowsTest.LatentRowsComeBackFromThePages"),
    Break("angles", "a row's angles are those of its token", "ops/cuda/cuda_ops.cc",
          "params.positions = Cast(inputs).positions();",
          "params.positions = Cast(inputs).token_ids();",
          "families_test", "Families/FamilyTest.EveryLayerBesideTheCpus/v2_lite"),
    Break("shared", "every part of the shared MLP is its first", "ops/cuda/cuda_weight_loader.cc",
          "(rows ? part.first_row : part.first_col) = i * e.width;",
          "(rows ? part.first_row : part.first_col) = 0 * i;",
          "families_test", "Families/FamilyTest.EveryLayerBesideTheCpus/v2_lite"),
    Break("capability", "a GPU of any 9.x is taken", "ops/cuda/hopper_gpu.cc",
          "gpu.major != 9 || gpu.minor != 0", "gpu.major != 9", "hopper_gpu_test",
          "HopperGpuTest.OtherGpusAreRefused"),
    Break("capability", "a driver that is too old is not noticed", "ops/cuda/hopper_gpu.cc",
          "if (gpu.error != cudaSuccess || gpu.count == 0) {", "if (gpu.error == cudaErrorNoDevice) {",
          "hopper_gpu_test", "HopperGpuTest.WithoutAUsableGpuItSaysWhatIsNeeded"),
    Break("gathered", "a row's choices all get the place of its first", "kernels/cuda/matmul_gather.cu",
          "gather.places[first_pair + choice]", "gather.places[first_pair]",
          "expert_matmul_test", "*GivesTheBitsOfEachExpertsOwnProduct*"),
    Break("gathered", "shared experts have no places", "kernels/cuda/expert_router.cu",
          "    const int pair = row * choices + params.top_k + shared;\n    routing.pairs[place] = pair;\n"
          "    if (routing.places != nullptr) routing.places[pair] = place;",
          "    const int pair = row * choices + params.top_k + shared;\n    routing.pairs[place] = pair;",
          "expert_router_test", "*ManyRows*"),
    Break("batches", "prompts begin where those of the first batch did", "kernels/cuda/prompt_attention.cc",
          "params.batch == 0 || params.batch != batch_", "params.batch == 0 || batch_ == 0",
          "prompt_attention_test", "*BitsDoNotDependOnHowAPromptIsCut*"),
    Break("memory", "the work space of a cache of a given size comes with the first requests",
          "engine/engine_loader.cc", "  if (plan.device() == DeviceKind::kCpu) return;",
          "  if (!plan.FillsDevice()) return;",
          "out_of_memory_test", "OutOfMemoryTest.StepsTakeLittleMoreThanTheStartTook"),
    Break("memory", "a lack of memory is told in the driver's words", "kernels/cuda/device_memory.cc",
          "if (error == cudaErrorMemoryAllocation) {", "if (false) {",
          "out_of_memory_test", "OutOfMemoryTest.EveryRequestIsToldAndNoOtherIsTaken"),
    Break("progress", "a byte that nobody reads belongs to all", "ops/cuda/cuda_weight_loader.cc",
          "progress(done, total);", "progress(done, total + 1);",
          "cuda_engine_test", "CudaEngineTest.ProgressOfLoadingComesToAnEnd"),
    Break("scored", "every second row of a tile adds its heads from the last one",
          "kernels/cuda/sparse/index_scores_task.cuh", "const int at = i * kSteps + j;",
          "const int at = i * kSteps + (i % 2 == 0 ? j : kSteps - 1 - j);",
          "index_scores_test", "*KeepBitsInEveryStep*"),
    Break("scored", "rows of two ranges are scored together",
          "kernels/cuda/sparse/sparse_rows_task.cuh",
          "if (in_tile == 0 || row % params.score_rows == 0) {", "if (in_tile == 0) {",
          "index_scores_test", "SparseRowsTest.SaysWhatRowsSee"),
    Break("chosen", "-0 is smaller than 0", "kernels/cuda/sparse/choose_entries_task.cuh",
          "const uint32_t key = OrderKey(score);",
          "const uint32_t key = OrderKey(score) - (__float_as_uint(score) == 0x80000000u ? 1 : 0);",
          "choose_entries_test", "*GivesTiesToTheLowerIndex"),
    Break("chosen", "a warp does not know of the equals before its own",
          "kernels/cuda/sparse/choose_entries_task.cuh",
          "lane < warp ? shared.warp_equal[lane] : 0", "lane < 0 ? shared.warp_equal[lane] : 0",
          "choose_entries_test", "*GivesTiesToTheLowerIndex"),
    Break("listed", "places behind a list's end take part",
          "kernels/cuda/sparse/listed_attention_scores.cuh",
          "if (place + kMlaTileKeys > item.seq_len) {", "if (place > item.seq_len) {",
          "listed_attention_test", "Hopper/*"),
    Break("listed", "a block that folds as it goes folds half as often",
          "kernels/cuda/sparse/listed_attention.cu", "args.mla.splits = kSplits;",
          "args.mla.splits = {2 * kListedSplit, 1 << 20, 1 << 20};",
          "listed_attention_test", "Hopper/*"),
)
