import type { ProblemDocument } from "./documents";

/** A request that the service refused. */
export class Problem extends Error {
  constructor(readonly document: ProblemDocument) {
    super(document.detail || document.title);
  }

  get status(): number {
    return this.document.status;
  }

  get code(): string {
    return this.document.code;
  }

  get hint(): string | undefined {
    return this.document.hint;
  }
}

/** The service could not be reached, so nothing is known about the request. */
export class ConnectionLost extends Error {
  constructor(cause: unknown) {
    super("The service cannot be reached.", { cause });
  }
}

/** The problem of a response that is not JSON, for example from a proxy. */
export function foreignProblem(status: number, title: string): Problem {
  return new Problem({
    type: "about:blank",
    title,
    status,
    detail: `The service answered ${status}${title ? ` ${title}` : ""}.`,
    code: `http_${status}`,
  });
}
