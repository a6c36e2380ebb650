// What became of drafts and tokens, from the steps that the server reports. No drawing here.
//
// A step is {drafts: [token], num_accepted, tokens: [token]} with tokens {id, text, bytes?}: drafts
// that were verified, how many of them were right, and what was emitted.

/**
 * Where token `index` of a step comes from: "accepted" (it had been drafted), "corrected" (another
 * had been drafted), "bonus" (it follows drafts that were all right), "plain" (no drafts).
 */
export function tokenKind(step, index) {
  if (index < step.num_accepted) return "accepted";
  if (step.drafts.length === 0) return "plain";
  return step.num_accepted < step.drafts.length ? "corrected" : "bonus";
}

/** What became of a draft: "accepted", "rejected", or "unused": right, but the answer had ended. */
export function draftFate(step, index) {
  if (index >= step.num_accepted) return "rejected";
  return index < step.tokens.length ? "accepted" : "unused";
}

/** The sums over an answer's steps, counted as the server does. */
export class Acceptance {
  kinds = { accepted: 0, corrected: 0, bonus: 0, plain: 0 };
  fates = { accepted: 0, rejected: 0, unused: 0 };
  numTokens = 0;
  numSpecSteps = 0; // steps that had drafts
  numDrafts = 0;
  numAccepted = 0;
  drafted = []; // by position in the draft
  accepted = [];
  lengths = []; // [n]: steps with drafts of which n were accepted

  add(step) {
    this.numTokens += step.tokens.length;
    step.tokens.forEach((_, index) => this.kinds[tokenKind(step, index)]++);
    if (step.drafts.length === 0) return;
    this.numSpecSteps++;
    this.numDrafts += step.drafts.length;
    this.numAccepted += step.num_accepted;
    step.drafts.forEach((_, index) => {
      this.fates[draftFate(step, index)]++;
      this.drafted[index] = (this.drafted[index] ?? 0) + 1;
      this.accepted[index] = (this.accepted[index] ?? 0) + (index < step.num_accepted ? 1 : 0);
    });
    for (let n = this.lengths.length; n <= step.drafts.length; n++) this.lengths[n] = 0;
    this.lengths[step.num_accepted]++;
  }

  /** Tokens per verify step: accepted drafts and the one after them. */
  get meanLength() {
    return this.numSpecSteps ? 1 + this.numAccepted / this.numSpecSteps : 1;
  }

  get rate() {
    return this.numDrafts ? this.numAccepted / this.numDrafts : 0;
  }
}

/** The text of tokens one after another: a character may be spread over several. */
export class TokenText {
  #decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  #encoder = new TextEncoder();

  next(token) {
    const bytes = token.bytes ? Uint8Array.from(token.bytes) : this.#encoder.encode(token.text);
    return this.#decoder.decode(bytes, { stream: true });
  }
}
