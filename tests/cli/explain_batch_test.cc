// The batches of `outrider explain --batch`: how they are written, and what is printed.
#include "outrider/cli/explain_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/options/command_line.h"
#include "tests/source_directory.h"

namespace outrider::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Json = nlohmann::json;

std::string Explain(const std::string& items, AttentionBackend backend, int32_t k = 3) {
  return ExplainedBatch(ParseBatchItems("--batch", items), backend, KvCacheForm::kLatent,
                        KvCacheForm::kLatent, k, 64)
      .Text();
}

std::string BatchError(const std::string& items) {
  try {
    ParseBatchItems("--batch", items);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), Not(HasSubstr("\n")));
    return error.what();
  }
  return "no error";
}

TEST(BatchItems, RolesRowsAndContext) {
  const auto items = ParseBatchItems("--batch", " p:37  d:4@900,d:1@12\tc:64@128 p:2@5 c:7\n");
  ASSERT_EQ(items.size(), 6U);
  const auto expect = [&](size_t i, const char* text, Phase phase, int32_t rows, int32_t context) {
    EXPECT_EQ(items[i].text, text);
    EXPECT_EQ(items[i].phase, phase);
    EXPECT_EQ(items[i].rows, rows);
    EXPECT_EQ(items[i].context, context);
  };
  expect(0, "p:37", Phase::kPromptEnd, 37, 0);
  expect(1, "d:4@900", Phase::kDecode, 4, 900);
  expect(2, "d:1@12", Phase::kDecode, 1, 12);
  expect(3, "c:64@128", Phase::kPromptChunk, 64, 128);
  expect(4, "p:2@5", Phase::kPromptEnd, 2, 5);
  expect(5, "c:7", Phase::kPromptChunk, 7, 0);
}

TEST(BatchItems, ErrorsNameTheItemWhatIsWrongAndWhatIsRight) {
  EXPECT_EQ(BatchError("p:37 x:3"),
            "--batch: item 2 'x:3': must start with p: (a prompt), c: (a chunk of a prompt) or d: "
            "(decode); write for example p:37, c:64@128 or d:4@900");
  EXPECT_EQ(BatchError("d:4"),
            "--batch: item 1 'd:4': a decode request needs the number of its cached tokens; write "
            "for example d:4@900");
  EXPECT_EQ(BatchError("d:0@7"),
            "--batch: item 1 'd:0@7': '0' is no number of rows from 1 to 1048576; write for "
            "example d:4@900");
  EXPECT_EQ(BatchError("d:4@0"),
            "--batch: item 1 'd:4@0': '0' is no number of cached tokens from 1 to 16777216; write "
            "for example d:4@900");
  EXPECT_THAT(BatchError(""), HasSubstr("names no request"));
  EXPECT_THAT(BatchError(" , "), HasSubstr("names no request"));
  EXPECT_THAT(BatchError("c:1000000 c:100000"), HasSubstr("a step has at most 1048576"));
  for (const char* bad :
       {"37", "p", "p:", ":37", "p:@3", "p:3@", "p:-3", "p:3@-1", "p:3x", "p:3@4@5", "p:3@4x",
        "p: 3", "P:3", "pp:3", "p:99999999999999999999", "p:3@99999999999", "d:4@+9", "p:0x10"}) {
    EXPECT_THAT(BatchError(bad), AllOf(StartsWith("--batch: item 1 '"), HasSubstr("; write for")))
        << bad;
  }
}

TEST(BatchItems, AnyTextIsItemsOrAnError) {
  std::mt19937 random(3);
  const std::string alphabet("pcd:@0123456789 ,x-\0\xff", 21);
  for (int trial = 0; trial < 20000; ++trial) {
    std::string text;
    for (uint32_t n = random() % 12; n > 0; --n) text += alphabet[random() % alphabet.size()];
    try {
      for (const BatchItem& item : ParseBatchItems("--batch", text)) {
        ASSERT_GE(item.rows, 1);
        ASSERT_GE(item.context, item.phase == Phase::kDecode ? 1 : 0);
      }
    } catch (const Error&) {
      continue;
    }
  }
}

TEST(ExplainBatch, ShowsTheLayoutInRowOrder) {
  EXPECT_THAT(
      Explain("p:37 c:8@64 d:4@900 d:1@12", AttentionBackend::kRagged),
      StartsWith("Step of 4 requests, 50 rows; k = 3: decode requests have up to 4 rows\n\n"
                 "  request  phase         rows   length  context  positions  drafts  logits rows\n"
                 "  d:1@12   decode        0      1       12       12         0       0\n"
                 "  d:4@900  decode        1-4    4       900      900-903    3       1-4\n"
                 "  p:37     prompt end    5-41   37      0        0-36       -       5\n"
                 "  c:8@64   prompt chunk  42-49  8       64       64-71      -       -\n"));
}

TEST(ExplainBatch, SaysWhichKernelTakesWhichRows) {
  const std::string items = "d:1@9 d:2@9 d:2@8 d:1@7 p:4";
  EXPECT_THAT(Explain(items, AttentionBackend::kRagged),
              AllOf(HasSubstr("(exact"), HasSubstr("decode, absorbed   0-5   each request"),
                    HasSubstr("prompts, expanded  6-9 "), Not(HasSubstr("left over"))));
  EXPECT_THAT(Explain(items, AttentionBackend::kUniformPad),
              AllOf(HasSubstr("(exact"), HasSubstr("4 runs of 4 rows, 10 rows of padding"),
                    Not(HasSubstr("left over"))));
  EXPECT_THAT(Explain(items, AttentionBackend::kUniformShortest),
              AllOf(HasSubstr("(NOT exact"), HasSubstr("2 requests of 1 row "),
                    HasSubstr("left over, expanded  2-5 ")));
  EXPECT_THAT(Explain(items, AttentionBackend::kUniformLargest),
              AllOf(HasSubstr("2 requests of 2 rows"), HasSubstr("left over, expanded  0-1 ")));
  EXPECT_THAT(Explain("d:3@9 d:1@9 d:2@7", AttentionBackend::kSingle),
              AllOf(HasSubstr("1 request of 1 row "), HasSubstr("left over, expanded  1-5 "),
                    Not(HasSubstr("prompts"))));
}

TEST(ExplainBatch, MoreRowsThanOneAndKAreRecomputed) {
  const std::string text = Explain("d:9@50", AttentionBackend::kUniformPad, 2);
  EXPECT_THAT(text, AllOf(HasSubstr("decode, recomputed  0-8   9       50       50-58      0"),
                          HasSubstr("3 runs of 3 rows, 0 rows of padding  d:9@50\n")));
  EXPECT_THAT(Explain("d:3@50", AttentionBackend::kRagged, 2), Not(HasSubstr("recomputed")));
}

TEST(ExplainBatch, PromptsAloneNeedNoDecodeKernel) {
  const std::string text = Explain("p:4", AttentionBackend::kSingle);
  EXPECT_THAT(text, AllOf(HasSubstr("Step of 1 request, 4 rows"), Not(HasSubstr("absorbed"))));
}

TEST(ExplainBatch, Json) {
  const std::string text = ExplainedBatch(ParseBatchItems("--batch", "p:37 d:4@900 d:1@12 d:1@5"),
                                          AttentionBackend::kUniformLargest, KvCacheForm::kLatent,
                                          KvCacheForm::kLatent, 3, 16)
                               .Json();
  EXPECT_EQ(text.back(), '\n');
  const Json json = Json::parse(text);
  EXPECT_EQ(json["num_rows"], 43);
  EXPECT_EQ(json["num_speculative_tokens"], 3);
  ASSERT_EQ(json["requests"].size(), 4U);
  EXPECT_EQ(json["requests"][2]["request"], "d:4@900");
  EXPECT_EQ(json["requests"][2]["num_drafts"], 3);
  EXPECT_EQ(json["requests"][2]["first_logits_row"], 2);
  EXPECT_EQ(json["requests"][2]["num_logits_rows"], 4);
  const Json& attention = json["attention"];
  EXPECT_EQ(attention["backend"], "uniform-largest");
  EXPECT_EQ(attention["exact"], false);
  EXPECT_EQ(attention["kernel_query_length"], 1);
  EXPECT_EQ(attention["decode"].size(), 2U);
  ASSERT_EQ(attention["left_over"].size(), 1U);
  EXPECT_EQ(attention["left_over"][0]["request"], "d:4@900");
  EXPECT_EQ(attention["left_over"][0]["first_row"], 2);
  EXPECT_EQ(attention["prompts"][0]["query_length"], 37);
}

Invocation ParseBatch(const std::vector<std::string>& arguments) {
  return ParseCommandLine(arguments, [](const std::string&) { return std::nullopt; });
}

TEST(ExplainBatch, NeedsNoModel) {
  const Invocation invocation =
      ParseBatch({"explain", "--batch", "p:37 d:4@900", "--attention-backend", "single"});
  EXPECT_EQ(invocation.command, Command::kExplain);
  EXPECT_EQ(invocation.settings.explain.batch.size(), 2U);
  EXPECT_EQ(invocation.settings.engine.attention_backend, AttentionBackend::kSingle);
  EXPECT_THROW(ParseBatch({"explain"}), Error);
  EXPECT_THROW(ParseBatch({"explain", "--batch", "nonsense"}), Error);
}

TEST(ExplainBatch, PerHeadEntriesTakeAllRowsInOneCall) {
  const ExplainedBatch batch(ParseBatchItems("--batch", "p:37 d:4@900 d:1@12"),
                             AttentionBackend::kRagged, KvCacheForm::kHeads, KvCacheForm::kHeads, 3,
                             64);
  EXPECT_THAT(batch.Text(), HasSubstr("KV cache form: heads\n"));
  EXPECT_THAT(batch.Text(),
              testing::ContainsRegex("all, per head +0-41 +each request at its own length +"
                                     "d:1@12 d:4@900 p:37\n"));
  const auto attention = nlohmann::json::parse(batch.Json())["attention"];
  EXPECT_EQ(attention["kv_cache_form"], "heads");
  EXPECT_EQ(attention["per_head"].size(), 3U);
  EXPECT_TRUE(attention["decode"].empty());
}

// docs/cli.md shows a call and, in the same block, all that it prints.
TEST(ExplainBatch, TheDocumentedTranscriptIsTheRealOne) {
  std::ifstream in(SourceDirectory() / "docs/cli.md");
  const std::string page((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const std::string items = "p:37 d:4@900 d:1@12 d:4@33";
  EXPECT_THAT(page, HasSubstr("$ outrider explain --batch \"" + items +
                              "\" --attention-backend uniform-largest\n" +
                              Explain(items, AttentionBackend::kUniformLargest) + "```\n"));
}

}  // namespace
}  // namespace outrider::cli
