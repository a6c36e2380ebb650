// What drafts, from options and a checkpoint's facts.
#include "outrider/engine/plan/draft_plan.h"

#include <gtest/gtest.h>

#include "tests/engine/plan/made_up_facts.h"

namespace outrider {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using Change = std::function<void(SpeculationOptions&)>;

EngineOptions OptionsWith(const Change& change) {
  EngineOptions options;
  options.model = "the model";
  change(options.speculation);
  return options;
}

DraftPlan PlanOf(const ModelFacts& model, const Change& change) {
  Decisions decisions;
  return PlanDrafts(OptionsWith(change), model, decisions);
}

std::string RefusalOf(const ModelFacts& model, const Change& change) {
  return RefusalBy([&] { PlanOf(model, change); });
}

std::string DecisionOf(const std::string& what, const ModelFacts& model, const Change& change) {
  Decisions decisions;
  PlanDrafts(OptionsWith(change), model, decisions);
  return DecisionOn(what, decisions);
}

void NoChange(SpeculationOptions&) {}
void Eagle3(SpeculationOptions& o) {
  o.method = DraftMethod::kEagle3;
  o.model = "the drafter";
}
Change Drafts(int32_t k) {
  return [k](SpeculationOptions& o) { o.num_speculative_tokens = k; };
}

void ExpectReach(const DraftPlan& plan, int32_t lookahead, int32_t rerun, int32_t ahead) {
  EXPECT_EQ(plan.reach.lookahead, lookahead);
  EXPECT_EQ(plan.reach.rerun_tokens, rerun);
  EXPECT_EQ(plan.reach.tokens_ahead, ahead);
}

TEST(DraftPlan, AChainDraftsATokenPerModule) {
  const DraftPlan plan = PlanOf(TinyV3(), NoChange);
  EXPECT_EQ(plan.type, DrafterType::kChain);
  EXPECT_EQ(plan.k, 3);
  EXPECT_EQ(plan.modules, 3);
  EXPECT_FALSE(plan.own_checkpoint);
  ExpectReach(plan, 0, 2, 3);
  const DraftPlan two = PlanOf(TinyV3(), Drafts(2));
  EXPECT_EQ(two.k, 2);
  EXPECT_EQ(two.modules, 2) << "modules that never run are not loaded";
  ExpectReach(two, 0, 1, 2);
  ExpectReach(PlanOf(TinyV3(), [](auto& o) { o.draft_form = DraftForm::kPadded; }), 0, 3, 3);
  EXPECT_EQ(RefusalOf(TinyV3(), Drafts(4)),
            "num_speculative_tokens is 4, but the model has 3 chained MTP modules: use 0 to 3");
}

TEST(DraftPlan, AChainStaysOneWithOneDraft) {
  EXPECT_EQ(PlanOf(TinyV3(3), Drafts(1)).type, DrafterType::kChain);
}

TEST(DraftPlan, OneModuleIsRepeated) {
  const DraftPlan plan = PlanOf(TinyV3(1), NoChange);
  EXPECT_EQ(plan.type, DrafterType::kRepeated);
  EXPECT_EQ(plan.k, 3);
  EXPECT_EQ(plan.modules, 1);
  ExpectReach(plan, 2, 0, 1);
  EXPECT_EQ(PlanOf(TinyV3(1), Drafts(7)).k, 7);
}

TEST(DraftPlan, NothingDraftsWithoutModulesOrWithoutDrafts) {
  const DraftPlan none = PlanOf(GoldenModel("tiny-v3-options"), NoChange);
  EXPECT_EQ(none.type, DrafterType::kNone);
  EXPECT_EQ(none.k, 0);
  EXPECT_FALSE(none.HasModules());
  EXPECT_EQ(none.warning, "");
  EXPECT_EQ(PlanOf(TinyV3(), Drafts(0)).type, DrafterType::kNone);
  EXPECT_EQ(PlanOf(TinyV3(), Drafts(0)).modules, 0);
  EXPECT_THAT(RefusalOf(GoldenModel("tiny-v3-options"), Drafts(2)), HasSubstr("no MTP layer: use"));
  EXPECT_THAT(RefusalOf(GoldenModel("tiny-v3-options"), [](auto& o) { o.adaptive = true; }),
              HasSubstr("adaptive is true, but the model holds no MTP layer"));
}

TEST(DraftPlan, FilesThatLackWhatTheConfigNamesAreWarnedOf) {
  EXPECT_EQ(PlanOf(TinyV3(0), NoChange).warning,
            "the model: config.json names 3 MTP modules, but the files hold none: nothing is "
            "drafted");
  ModelFacts dspark = TinyDSpark();
  dspark.modules = 0;
  EXPECT_THAT(PlanOf(dspark, NoChange).warning, HasSubstr("stages of a DSpark drafter"));
  EXPECT_EQ(PlanOf(TinyV3(0), Drafts(0)).warning, "");
}

TEST(DraftPlan, PromptLookupNeedsNoModules) {
  const auto ngram = [](SpeculationOptions& o) { o.method = DraftMethod::kNgram; };
  const DraftPlan plan = PlanOf(TinyV3(), ngram);
  EXPECT_EQ(plan.type, DrafterType::kNgram);
  EXPECT_EQ(plan.k, 3);
  EXPECT_FALSE(plan.HasModules());
  ExpectReach(plan, 0, 0, 0);
  EXPECT_THAT(DecisionOf("draft length", TinyV3(), ngram), HasSubstr("always 3"));
}

TEST(DraftPlan, ADSparkDrafterDraftsBlocks) {
  const auto block = static_cast<int32_t>(TinyDSpark().config.dspark->block_size);
  const DraftPlan plan = PlanOf(TinyDSpark(), NoChange);
  EXPECT_EQ(plan.type, DrafterType::kBlocks);
  EXPECT_EQ(plan.k, block);
  EXPECT_EQ(plan.modules, TinyDSpark().modules) << "all stages, however many drafts there are";
  ExpectReach(plan, block, 0, 0);
  const DraftPlan fewer = PlanOf(TinyDSpark(), Drafts(1));
  EXPECT_EQ(fewer.k, 1);
  EXPECT_EQ(fewer.modules, TinyDSpark().modules);
  ExpectReach(fewer, block, 0, 0);
  EXPECT_THAT(RefusalOf(TinyDSpark(), Drafts(block + 1)), HasSubstr("drafts blocks of"));
  EXPECT_THAT(RefusalOf(TinyDSpark(), [](auto& o) { o.draft_vocab_size = 50; }),
              HasSubstr("draft_vocab_size needs MTP modules"));
  EXPECT_THAT(DecisionOf("draft confidences", TinyDSpark(), NoChange), HasSubstr("used"));
  EXPECT_EQ(DecisionOf("draft confidences", TinyDSpark(), Drafts(2)), "")
      << "a given number of drafts is not cut";
}

TEST(DraftPlan, AnEagle3DrafterMustBeMadeForTheModel) {
  const DraftPlan plan = PlanOf(TinyV3WithEagle3(), Eagle3);
  EXPECT_EQ(plan.type, DrafterType::kRepeated);
  EXPECT_TRUE(plan.own_checkpoint);
  EXPECT_TRUE(plan.HasModules());
  EXPECT_EQ(plan.modules, 0) << "the model's own are not loaded";
  EXPECT_EQ(plan.k, 3);
  ExpectReach(plan, 2, 0, 1);
  const auto layers = [](SpeculationOptions& o) {
    Eagle3(o);
    o.eagle_aux_hidden_state_layer_ids = {1, 2, 4};
  };
  EXPECT_THAT(PlanOf(TinyV3WithEagle3(), layers).taps, ElementsAre(0, 1, 3));
  const auto refusal = [](const std::function<void(DrafterFacts&)>& change) {
    ModelFacts facts = TinyV3WithEagle3();
    change(*facts.drafter);
    return RefusalOf(facts, Eagle3);
  };
  EXPECT_EQ(refusal([](DrafterFacts& d) { d.config.vocab_size = 7; }),
            "the drafter: \"vocab_size\" is 7: a drafter for the model needs 2048");
  EXPECT_THAT(refusal([](DrafterFacts& d) { d.config.eagle3->target_hidden_size = 7; }),
              HasSubstr("\"target_hidden_size\" is 7"));
  EXPECT_THAT(refusal([](DrafterFacts& d) { d.config.hidden_size = 7; }),
              HasSubstr("\"hidden_size\" is 7"));
  EXPECT_EQ(refusal([](DrafterFacts& d) {
              d.config.hidden_size = 7;
              d.own_embedding = true;
            }),
            "");
}

TEST(DraftPlan, ADrafterOfFewerPositionsIsNamed) {
  ModelFacts facts = TinyV3WithEagle3();
  EXPECT_EQ(DecisionOf("drafter's context", facts, Eagle3), "") << "as many as the target";
  facts.drafter->config.max_position_embeddings = facts.config.max_position_embeddings - 1;
  EXPECT_THAT(DecisionOf("drafter's context", facts, Eagle3), HasSubstr("4095 tokens"));
  facts.drafter->config.max_position_embeddings = facts.config.max_position_embeddings + 1;
  EXPECT_EQ(DecisionOf("drafter's context", facts, Eagle3), "");
}

TEST(DraftPlan, LinearAttentionTakesNoDrafterOfItsOwn) {
  ModelFacts facts = TinyV3WithEagle3();
  facts.modules = 0;
  facts.config.family = ModelFamily::kBailingHybrid;
  EXPECT_THAT(RefusalOf(facts, Eagle3), HasSubstr("networks with linear attention"));
  EXPECT_THAT(RefusalOf(facts, Drafts(1)), HasSubstr("holds no MTP layer"));
  facts.modules = 1;
  EXPECT_THAT(RefusalOf(facts, Eagle3), HasSubstr("networks with linear attention"));
  EXPECT_EQ(PlanOf(facts, NoChange).type, DrafterType::kRepeated);
  EXPECT_EQ(PlanOf(facts, Drafts(5)).k, 5);
}

TEST(DraftPlan, DraftsAreOfAPartOfTheVocabulary) {
  const auto part = [](int32_t size) {
    return [size](SpeculationOptions& o) { o.draft_vocab_size = size; };
  };
  EXPECT_THAT(DecisionOf("draft vocabulary", TinyV3(), part(500)),
              HasSubstr("the first 500 of 2048 tokens"));
  EXPECT_EQ(DecisionOf("draft vocabulary", TinyV3(), NoChange), "");
  for (const int32_t size : {0, 2049}) {
    EXPECT_THAT(RefusalOf(TinyV3(), part(size)), HasSubstr("it must be 1 to 2048"));
  }
}

TEST(DraftPlan, AcceptanceRatesAreOnePerDraft) {
  const auto synthetic = [](SpeculationOptions& o) {
    o.rejection_sample_method = RejectionMethod::kSynthetic;
  };
  const DraftPlan plan = PlanOf(TinyV3(), [&](auto& o) {
    synthetic(o);
    o.synthetic_acceptance_length = 2.5;
  });
  EXPECT_EQ(plan.acceptance.method, RejectionMethod::kSynthetic);
  EXPECT_THAT(plan.acceptance.rates, ElementsAre(1, 0.5, 0));
  EXPECT_NE(RefusalOf(TinyV3(),
                      [&](auto& o) {
                        synthetic(o);
                        o.synthetic_acceptance_rates = {0.5, 0.4};
                      }),
            "");
  EXPECT_TRUE(PlanOf(TinyV3(), NoChange).acceptance.rates.empty());
}

TEST(DraftPlan, SaysWhyTheDraftLengthIsWhatItIs) {
  const auto length = [](const Change& change) {
    return DecisionOf("draft length", TinyV3(), change);
  };
  EXPECT_THAT(length(NoChange), HasSubstr("adaptive, 0 to 3"));
  EXPECT_EQ(length(Drafts(2)), "always 2 (num_speculative_tokens)");
  EXPECT_EQ(length([](auto& o) { o.adaptive = false; }), "always 3 (adaptive is false)");
  EXPECT_THAT(length([](auto& o) { o.rejection_sample_method = RejectionMethod::kStandard; }),
              HasSubstr("match only"));
  EXPECT_THAT(length([](auto& o) { o.num_speculative_tokens_per_batch_size = {{1, 4, 3}}; }),
              HasSubstr("by batch size"));
}

}  // namespace
}  // namespace outrider
