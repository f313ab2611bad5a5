import { apiUrl, fetched } from "../api/client";
import { StreamReader } from "./stream";

export type FeedState = "connecting" | "open" | "lost";

/** What tabs tell one another. One of them, the leader, holds the connection to the service. */
type Message =
  | { kind: "event"; type: string; data: string }
  | { kind: "state"; state: FeedState }
  | { kind: "watch"; tab: string; ids: string[] }
  | { kind: "ask" };

export interface FeedListener {
  event(type: string, data: string): void;
  state(state: FeedState): void;
  signedOut(): void;
}

const MOST_WATCHED = 20;
const LONGEST_WAIT = 10_000;

/** The live feed of the tenant's executions. All tabs of the browser share one stream. */
export class Feed {
  readonly #tab = crypto.randomUUID();
  readonly #channel: BroadcastChannel;
  readonly #closed = new AbortController();
  readonly #watched = new Map<string, string[]>(); // by tab; only the leader needs those of others
  #own: string[] = [];
  #isLeader = false;
  #state: FeedState = "connecting";
  #lastId = "";
  #connection = new AbortController();

  constructor(
    readonly name: string,
    readonly listener: FeedListener,
  ) {
    this.#channel = new BroadcastChannel(name);
    this.#channel.onmessage = ({ data }: MessageEvent<Message>) => this.#hear(data);
  }

  open(): void {
    if (!("locks" in navigator)) {
      void this.#lead();
      return;
    }
    const options = { signal: this.#closed.signal };
    navigator.locks.request(this.name, options, () => this.#lead()).catch(() => undefined); // rejects when closed
  }

  close(): void {
    this.watch([]);
    this.#closed.abort();
    this.#connection.abort();
    this.#channel.close();
  }

  /** Also streams all events of these executions to this tab. */
  watch(ids: string[]): void {
    this.#own = ids;
    this.#watch(this.#tab, ids);
    this.#tell({ kind: "watch", tab: this.#tab, ids });
  }

  #hear(message: Message): void {
    if (message.kind === "event") this.listener.event(message.type, message.data);
    else if (message.kind === "state") this.#enter(message.state);
    else if (message.kind === "watch") this.#watch(message.tab, message.ids);
    else {
      this.#tell({ kind: "watch", tab: this.#tab, ids: this.#own });
      if (this.#isLeader) this.#tell({ kind: "state", state: this.#state });
    }
  }

  #tell(message: Message): void {
    if (!this.#closed.signal.aborted) this.#channel.postMessage(message);
  }

  #watch(tab: string, ids: string[]): void {
    const before = this.#chosen().join();
    this.#watched.delete(tab);
    if (ids.length) this.#watched.set(tab, ids);
    if (this.#isLeader && this.#chosen().join() !== before) this.#connection.abort();
  }

  /** The executions to watch: those of the tabs that asked last, because their number is limited. */
  #chosen(): string[] {
    return [...new Set([...this.#watched.values()].reverse().flat())].slice(0, MOST_WATCHED).sort();
  }

  #enter(state: FeedState): void {
    if (state === this.#state) return;
    this.#state = state;
    this.listener.state(state);
  }

  async #lead(): Promise<void> {
    this.#isLeader = true;
    this.#tell({ kind: "ask" });
    let failures = 0;
    while (!this.#closed.signal.aborted) {
      this.#connection = new AbortController();
      try {
        await this.#read();
        failures = 0;
      } catch {
        if (this.#connection.signal.aborted) continue; // another set of executions is watched
        failures += 1;
        this.#announce("lost");
      }
      await this.#pause(Math.min(LONGEST_WAIT, failures * 1_000) * (0.5 + Math.random() / 2));
    }
  }

  async #read(): Promise<void> {
    const headers: Record<string, string> = { Accept: "text/event-stream" };
    if (this.#lastId) headers["Last-Event-ID"] = this.#lastId;
    const url = apiUrl("/v1/feed", { watch: this.#chosen() });
    const response = await fetched(url, { headers, signal: this.#connection.signal });
    if (response.status === 401) this.listener.signedOut();
    if (response.status === 404) this.#watched.clear(); // one of them is gone, or was never there
    if (!response.ok || response.body === null) throw new Error(`The feed answered ${response.status}.`);
    this.#announce("open");
    const reader = new StreamReader();
    const chunks = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let chunk = await chunks.read(); !chunk.done; chunk = await chunks.read()) {
      for (const event of reader.read(chunk.value)) {
        this.listener.event(event.type, event.data);
        this.#tell({ kind: "event", type: event.type, data: event.data });
      }
      this.#lastId = reader.lastId || this.#lastId;
    }
  }

  #announce(state: FeedState): void {
    this.#enter(state);
    this.#tell({ kind: "state", state });
  }

  #pause(milliseconds: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, milliseconds);
      const stop = () => {
        clearTimeout(timer);
        resolve();
      };
      this.#closed.signal.addEventListener("abort", stop, { once: true });
      this.#connection.signal.addEventListener("abort", stop, { once: true });
    });
  }
}
