import { type InfiniteData, type QueryClient, useQueryClient } from "@tanstack/react-query";
import { createContext, type ReactNode, useCallback, useContext, useEffect, useMemo, useState } from "react";
import { refreshAttempts } from "../api/attempts";
import type { ExecutionSummary, Page } from "../api/documents";
import { PREFIX } from "../place";
import { parseJson } from "../values/json";
import { Feed, type FeedState } from "./feed";
import { Throttle } from "./throttle";

interface Live {
  state: FeedState;
  watch(ids: string[]): void;
}

/** What the console reads of a `status` or `event` of the feed. */
interface Change {
  execution_id: string;
  status?: ExecutionSummary["status"];
  completed_at?: string | null;
}

const LiveContext = createContext<Live>({ state: "connecting", watch: () => undefined });

const DETAIL_INTERVAL = 400;
const LIST_INTERVAL = 2_000;

/** Keeps what is shown up to date: reads the feed and marks what it concerns as out of date. */
export function LiveUpdates({ onSignedOut, children }: { onSignedOut: () => void; children: ReactNode }) {
  const client = useQueryClient();
  const [state, setState] = useState<FeedState>("connecting");
  const [feed, setFeed] = useState<Feed | null>(null);
  useEffect(() => {
    const updates = new Updates(client);
    const opened = new Feed(`tenuto-feed:${PREFIX}`, {
      event: (type, data) => updates.take(type, data),
      state: (next) => {
        setState(next);
        if (next === "open") void client.invalidateQueries({ queryKey: ["me"] }); // the service may be another version
      },
      signedOut: onSignedOut,
    });
    opened.open();
    setFeed(opened);
    return () => {
      opened.close();
      updates.stop();
    };
  }, [client, onSignedOut]);
  const watch = useCallback((ids: string[]) => feed?.watch(ids), [feed]);
  const live = useMemo(() => ({ state, watch }), [state, watch]);
  return <LiveContext value={live}>{children}</LiveContext>;
}

export function useFeedState(): FeedState {
  return useContext(LiveContext).state;
}

/** Streams the events of an execution while its page is open and shows it. */
export function useWatched(id: string, exists: boolean): void {
  const { watch } = useContext(LiveContext);
  useEffect(() => {
    if (!exists) return;
    watch([id]);
    return () => watch([]);
  }, [id, exists, watch]);
}

/** Applies the feed to the cached documents, at a limited rate. */
class Updates {
  readonly #client: QueryClient;
  readonly #details = new Map<string, Throttle>();
  readonly #lists: Throttle;

  constructor(client: QueryClient) {
    this.#client = client;
    this.#lists = new Throttle(LIST_INTERVAL, () => {
      for (const key of ["overview", "reviews", "dead-letters"]) void client.invalidateQueries({ queryKey: [key] });
      void client.invalidateQueries({ queryKey: ["executions"], refetchType: "none" });
    });
  }

  take(type: string, data: string): void {
    if (type === "reset") {
      void this.#client.invalidateQueries();
      return;
    }
    if (type !== "status" && type !== "event") return;
    const change = parseJson(data) as Change;
    if (type === "status") this.#patchRows(change);
    this.#detail(change.execution_id).run();
    if (type === "status") this.#lists.run();
  }

  stop(): void {
    this.#lists.stop();
    for (const each of this.#details.values()) each.stop();
  }

  #detail(id: string): Throttle {
    const known = this.#details.get(id);
    if (known) return known;
    const made = new Throttle(DETAIL_INTERVAL, () => {
      this.#details.delete(id);
      void this.#client.invalidateQueries({ queryKey: ["execution", id] });
      void refreshAttempts(this.#client, id);
    });
    this.#details.set(id, made);
    return made;
  }

  /** A row keeps its place in a list, and shows its new status. */
  #patchRows({ execution_id, status, completed_at }: Change): void {
    if (!status) return;
    this.#client.setQueriesData<InfiniteData<Page<ExecutionSummary>>>({ queryKey: ["executions"] }, (data) => {
      const isListed = data?.pages.some((page) => page.items.some((row) => row.execution_id === execution_id));
      if (!data || !isListed) return data;
      const patched = (row: ExecutionSummary): ExecutionSummary =>
        row.execution_id === execution_id ? { ...row, status, completed_at: completed_at ?? row.completed_at } : row;
      return { ...data, pages: data.pages.map((page) => ({ ...page, items: page.items.map(patched) })) };
    });
  }
}
