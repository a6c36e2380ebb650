// Why steps had fewer drafts than were chosen, in words. No drawing here.

/** What the server says of itself when the page begins to listen, before it has said anything. */
export const UNKNOWN_SERVER = {
  num_speculative_tokens: 0,
  max_model_len: 0,
  drafter: null,
  draft_length: null,
  example_questions: [],
};

/** The k of a request: its own, else the server's. */
export function chosenDrafts(body, server) {
  return body.speculation?.num_speculative_tokens ?? server.num_speculative_tokens;
}

/** One sentence about the server's drafts: none, or by which rule. "" when it says nothing. */
export function serverRule({ drafter, draft_length: length }) {
  if (length) return `This server's draft length: ${length.value} (${length.reason}).`;
  if (drafter) return `This server drafts nothing: ${drafter.reason}.`;
  return "";
}

const LIMITS = {
  schedule: ({ draft_length: length }) =>
    length ? `the engine drafted fewer: ${length.value} (${length.reason})` : "the engine drafted fewer",
  request: () => "the request asked for fewer",
  length: () => "so few tokens could still follow",
  drafter: () => "the drafter had no more that were likely enough",
  grammar: () => "the format refuses what was drafted",
  prompt: () => "the step ended the prompt: drafts follow a first token",
};

/** [{name, count, reason}] of the steps with fewer than `chosen` drafts; none if nothing fell short. */
export function shortfalls(steps, chosen, server) {
  const counts = new Map();
  for (const { drafts, draft_limit: name } of steps) {
    if (!name || drafts.length >= chosen) continue;
    counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  // Every answer begins with a step that ends its prompt: alone that is no news.
  if (counts.size === 1 && counts.get("prompt") === 1) return [];
  return Object.keys(LIMITS)
    .filter((name) => counts.has(name))
    .map((name) => ({ name, count: counts.get(name), reason: LIMITS[name](server) }));
}
