// The server as this page sees it: requests with the key, events of a stream, errors as they are.

const KEY_NAME = "outrider.api-key";

/** What the server refused or a stream broke off with. `status` 0: no answer at all. */
export class ApiError extends Error {
  constructor(status, message, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** The key lives in this tab only. */
export const apiKey = {
  get: () => sessionStorage.getItem(KEY_NAME) ?? "",
  set: (key) => sessionStorage.setItem(KEY_NAME, key),
};

async function errorOf(response) {
  const text = await response.text();
  try {
    const { error } = JSON.parse(text);
    return new ApiError(response.status, error.message, error.code);
  } catch {
    return new ApiError(response.status, text.slice(0, 300) || response.statusText, "");
  }
}

/** A response of status 200. Throws ApiError, or AbortError when `signal` says so. */
export async function request(path, { body, signal } = {}) {
  const headers = {};
  if (apiKey.get()) headers.Authorization = `Bearer ${apiKey.get()}`;
  if (body) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(new URL(path, document.baseURI), {
      method: body ? "POST" : "GET",
      headers,
      body: body && JSON.stringify(body),
      signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server does not answer.", "no_answer");
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

/** The data of a response's server-sent events, each a string. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const data = block
          .split("\n")
          .filter((line) => line.startsWith("data: "))
          .map((line) => line.slice(6))
          .join("\n");
        if (data) yield data;
      }
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The connection to the server broke off.", "broken_off");
  } finally {
    reader.cancel().catch(() => {}); // closes the connection when the caller stops listening
  }
}
