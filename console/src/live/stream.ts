/** One server-sent event. */
export interface StreamEvent {
  id: string;
  type: string;
  data: string;
}

/** Reads server-sent events from chunks of text. A chunk may end anywhere. */
export class StreamReader {
  #rest = "";
  #lastId = "";

  /** The id to continue after. It also comes with comments, which are no events. */
  get lastId(): string {
    return this.#lastId;
  }

  read(chunk: string): StreamEvent[] {
    const blocks = (this.#rest + chunk).replaceAll("\r\n", "\n").split("\n\n");
    this.#rest = blocks.pop() ?? "";
    return blocks.map((block) => this.#event(block)).filter((event) => event !== null);
  }

  #event(block: string): StreamEvent | null {
    let type = "message";
    const data: string[] = [];
    for (const line of block.split("\n")) {
      const [field = "", value = ""] = splitField(line);
      if (field === "id") this.#lastId = value;
      else if (field === "event") type = value;
      else if (field === "data") data.push(value);
    }
    return data.length ? { id: this.#lastId, type, data: data.join("\n") } : null;
  }
}

function splitField(line: string): [string, string] {
  const colon = line.indexOf(":");
  if (colon < 0) return [line, ""];
  const value = line.slice(colon + 1);
  return [line.slice(0, colon), value.startsWith(" ") ? value.slice(1) : value];
}
