#include "outrider/text/splitter.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/text/character_kinds.h"
#include "outrider/text/split_pattern.h"
#include "outrider/text/utf8.h"

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

bool IsAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

template <typename T>
using Owned = std::unique_ptr<T, Deleter>;

}  // namespace

struct SplitWorkspace::Impl {
  Owned<pcre2_match_data> match{pcre2_match_data_create(1, nullptr)};
  Owned<pcre2_jit_stack> stack{pcre2_jit_stack_create(kJitStackStart, kJitStackLimit, nullptr)};
  Owned<pcre2_match_context> context{pcre2_match_context_create(nullptr)};
  std::vector<std::string> spare;  // memory for the kinds of a text's characters
};

SplitWorkspace::SplitWorkspace() : impl_(std::make_unique<Impl>()) {
  OUTRIDER_CHECK(impl_->match && impl_->stack && impl_->context, "out of memory");
  pcre2_jit_stack_assign(impl_->context.get(), nullptr, impl_->stack.get());
}
SplitWorkspace::~SplitWorkspace() = default;

struct Splitter::Impl {
  Owned<pcre2_code> code;
  std::optional<CharacterKinds> kinds;  // none: the pattern is text and is looked for as bytes
  bool keep_matches;
  bool keep_between;
  std::string where;
};

Splitter::~Splitter() = default;
Splitter::Splitter(Splitter&&) noexcept = default;
Splitter& Splitter::operator=(Splitter&&) noexcept = default;

Splitter::Splitter(const SplitSpec& spec)
    : impl_(std::make_unique<Impl>(
          Impl{nullptr, std::nullopt, spec.keep_matches, spec.keep_between, spec.where})) {
  if (spec.pattern.size() > kMaxPatternBytes) {
    throw InvalidArgument("{}: the pattern has {} bytes, over the limit of {}", spec.where,
                          spec.pattern.size(), kMaxPatternBytes);
  }
  std::string pattern = spec.pattern;
  if (!spec.literal) {
    SplitPattern translated = TranslateSplitPattern(spec.pattern, spec.where);
    pattern = std::move(translated.expression);
    impl_->kinds = std::move(translated.kinds);
  }
  const Owned<pcre2_compile_context> context(pcre2_compile_context_create(nullptr));
  OUTRIDER_CHECK(context != nullptr, "out of memory");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  const uint32_t options =
      spec.literal ? PCRE2_LITERAL : PCRE2_MULTILINE | PCRE2_NEVER_UTF | PCRE2_NEVER_UCP;
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
  SplitWorkspace::Impl& work = *workspace->impl_;
  // What PCRE2 sees: a byte for each character. Text in ASCII is that already.
  std::string_view subject = text;
  const bool translated = impl_->kinds.has_value() && !IsAscii(text);
  std::string kinds;  // this call's own: `emit` may split pieces further in the same workspace
  if (translated) {
    if (!work.spare.empty()) {
      kinds = std::move(work.spare.back());
      work.spare.pop_back();
    }
    impl_->kinds->Translate(text, &kinds);
    subject = kinds;
  }
  const size_t limit = kMatchLimitBase + kMatchLimitPerByte * text.size();
  pcre2_set_match_limit(work.context.get(),
                        static_cast<uint32_t>(std::min<size_t>(limit, UINT32_MAX)));
  size_t position = 0;  // in the subject
  size_t byte = 0;      // in the text
  // The next characters of the text, up to `end` in the subject.
  const auto take = [&](size_t end) {
    const size_t start = byte;
    if (translated) {
      for (; position < end; ++position) byte += Utf8Size(static_cast<uint8_t>(text[byte]));
    } else {
      byte = position = end;
    }
    return text.substr(start, byte - start);
  };
  while (position < subject.size()) {
    const int found =
        pcre2_match(impl_->code.get(), reinterpret_cast<PCRE2_SPTR>(subject.data()), subject.size(),
                    position, 0, work.match.get(), work.context.get());
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) {
      throw Error(
          ErrorCode::kTooLarge,
          fmt::format("{}: {} bytes of text from byte {} cannot be split: {}; break the text "
                      "into shorter parts",
                      impl_->where, text.size() - byte, byte, Pcre2Message(found)));
    }
    const PCRE2_SIZE* span = pcre2_get_ovector_pointer(work.match.get());
    const size_t start = span[0];
    const size_t end = span[1];
    OUTRIDER_CHECK(start >= position && end > start && end <= subject.size(),
                   "match {}..{} from {}", start, end, position);
    const std::string_view between = take(start);
    if (impl_->keep_between && !between.empty()) emit(between);
    const std::string_view match = take(end);
    if (impl_->keep_matches) emit(match);
  }
  const std::string_view rest = take(subject.size());
  if (impl_->keep_between && !rest.empty()) emit(rest);
  if (translated) work.spare.push_back(std::move(kinds));
}

}  // namespace outrider
