#include "outrider/http/http_message.h"

#include <algorithm>

namespace outrider {
namespace {

class ReadyProducer : public HttpProducer {
 public:
  explicit ReadyProducer(HttpResponse response) : response_(std::move(response)) {}

  void Produce(HttpOutput* output) override {
    output->body = std::move(response_.body);
    response_.body.clear();
    output->head = std::move(response_);
    output->end = true;
  }
  void Abandon() override {}
  void Cancel() override {}

 private:
  HttpResponse response_;
};

}  // namespace

bool EqualIgnoringCase(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](char x, char y) { return lower(x) == lower(y); });
}

std::optional<std::string_view> HttpRequest::Header(std::string_view name) const {
  for (const HttpHeader& header : headers) {
    if (EqualIgnoringCase(header.name, name)) return header.value;
  }
  return std::nullopt;
}

std::shared_ptr<HttpProducer> MakeReadyProducer(HttpResponse response) {
  return std::make_shared<ReadyProducer>(std::move(response));
}

}  // namespace outrider
