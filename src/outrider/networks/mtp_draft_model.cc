#include "outrider/networks/mtp_draft_model.h"

namespace outrider {

MtpDraftModel::MtpDraftModel(Network& network, std::optional<int32_t> draft_vocab)
    : DraftModel(network.device(), network.attention()),
      network_(network),
      draft_vocab_(draft_vocab.value_or(network.vocab_size())),
      sampler_(network.device().ops.MakeSampler(network.device(), Verifier())) {}

void MtpDraftModel::Forward(const ModulePass& pass, KvCache& cache) {
  network_.ForwardMtp(pass.m, pass.entries, pass.outputs, cache, pass.previous, pass.hidden);
}

void MtpDraftModel::Draw(const DraftDraws& draws, std::span<TokenRef> tokens) {
  network_.Draw(*sampler_, draws.m, draws.hidden, draws.rows, draws.requests,
                {.rows = draft_vocab_}, tokens);
}

}  // namespace outrider
