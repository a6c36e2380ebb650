#include "outrider/text/splitter.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/text/split_pattern.h"

namespace outrider {
namespace {

// A run of letters takes JIT stack for every character: the default of 32 KiB ends near 10,000
// letters.
constexpr size_t kJitStackStart = 64UL << 10;
constexpr size_t kJitStackLimit = 64UL << 20;  // reserved address space, touched as it is needed
constexpr size_t kMaxPatternBytes = 16UL << 10;
// Backtracking allowed to one match: some for any text, and a few steps for each byte that is left.
constexpr size_t kMatchLimitBase = 100000;
constexpr size_t kMatchLimitPerByte = 8;

std::string Pcre2Message(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

struct Deleter {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
  void operator()(pcre2_compile_context* p) const { pcre2_compile_context_free(p); }
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
  void operator()(pcre2_jit_stack* p) const { pcre2_jit_stack_free(p); }
};

template <typename T>
using Owned = std::unique_ptr<T, Deleter>;

}  // namespace

struct SplitWorkspace::Impl {
  Owned<pcre2_match_data> match{pcre2_match_data_create(1, nullptr)};
  Owned<pcre2_jit_stack> stack{pcre2_jit_stack_create(kJitStackStart, kJitStackLimit, nullptr)};
  Owned<pcre2_match_context> context{pcre2_match_context_create(nullptr)};
};

SplitWorkspace::SplitWorkspace() : impl_(std::make_unique<Impl>()) {
  OUTRIDER_CHECK(impl_->match && impl_->stack && impl_->context, "out of memory");
  pcre2_jit_stack_assign(impl_->context.get(), nullptr, impl_->stack.get());
}
SplitWorkspace::~SplitWorkspace() = default;

struct Splitter::Impl {
  Owned<pcre2_code> code;
  bool keep_matches;
  bool keep_between;
  std::string where;
};

Splitter::~Splitter() = default;
Splitter::Splitter(Splitter&&) noexcept = default;
Splitter& Splitter::operator=(Splitter&&) noexcept = default;

Splitter::Splitter(const SplitSpec& spec)
    : impl_(
          std::make_unique<Impl>(Impl{nullptr, spec.keep_matches, spec.keep_between, spec.where})) {
  if (spec.pattern.size() > kMaxPatternBytes) {
    throw InvalidArgument("{}: the pattern has {} bytes, over the limit of {}", spec.where,
                          spec.pattern.size(), kMaxPatternBytes);
  }
  const std::string pattern =
      spec.literal ? spec.pattern : TranslateSplitPattern(spec.pattern, spec.where);
  const Owned<pcre2_compile_context> context(pcre2_compile_context_create(nullptr));
  OUTRIDER_CHECK(context != nullptr, "out of memory");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  const uint32_t options =
      PCRE2_UTF |
      (spec.literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C);
  impl_->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                  options, &error, &offset, context.get()));
  if (impl_->code == nullptr) {
    throw InvalidArgument(
        "{}: regular expression does not compile: {} (at byte {} of its PCRE2 form)", spec.where,
        Pcre2Message(error), offset);
  }
  uint32_t matches_empty = 0;
  pcre2_pattern_info(impl_->code.get(), PCRE2_INFO_MATCHEMPTY, &matches_empty);
  if (matches_empty != 0) {
    throw InvalidArgument("{}: the pattern can match the empty string, which would cut nowhere",
                          spec.where);
  }
  // Without JIT (a build or a kernel that forbids it) PCRE2 interprets: slower, same result.
  pcre2_jit_compile(impl_->code.get(), PCRE2_JIT_COMPLETE);
}

void Splitter::Split(std::string_view text, SplitWorkspace* workspace,
                     FunctionRef<void(std::string_view)> emit) const {
  const SplitWorkspace::Impl& work = *workspace->impl_;
  const size_t limit = kMatchLimitBase + kMatchLimitPerByte * text.size();
  pcre2_set_match_limit(work.context.get(),
                        static_cast<uint32_t>(std::min<size_t>(limit, UINT32_MAX)));
  size_t position = 0;
  while (position < text.size()) {
    const int found =
        pcre2_match(impl_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                    position, PCRE2_NO_UTF_CHECK, work.match.get(), work.context.get());
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) {
      throw Error(
          ErrorCode::kTooLarge,
          fmt::format("{}: {} bytes of text from byte {} cannot be split: {}; break the text "
                      "into shorter parts",
                      impl_->where, text.size() - position, position, Pcre2Message(found)));
    }
    const PCRE2_SIZE* span = pcre2_get_ovector_pointer(work.match.get());
    const size_t start = span[0];
    const size_t end = span[1];
    OUTRIDER_CHECK(start >= position && end > start && end <= text.size(), "match {}..{} from {}",
                   start, end, position);
    if (impl_->keep_between && start > position) emit(text.substr(position, start - position));
    if (impl_->keep_matches) emit(text.substr(start, end - start));
    position = end;
  }
  if (impl_->keep_between && position < text.size()) emit(text.substr(position));
}

}  // namespace outrider
