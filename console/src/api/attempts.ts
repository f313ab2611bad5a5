import { type InfiniteData, type QueryClient, useInfiniteQuery } from "@tanstack/react-query";
import { get } from "./client";
import type { AttemptRow, Page } from "./documents";
import { executionPath } from "./queries";

const SIZE = 100;

type Attempts = InfiniteData<Page<AttemptRow>, string>;

const keyOf = (id: string, step: string) => ["attempts", id, step] as const;

const read = (id: string, step: string, cursor: string, signal?: AbortSignal) =>
  get<Page<AttemptRow>>(`${executionPath(id)}/history`, { step_id: step, cursor, limit: SIZE }, signal);

/** The attempts of an execution, or of one of its steps, a page at a time: finished ones in the order of their end,
 * then open ones. */
export function useAttempts(id: string, step = "") {
  return useInfiniteQuery({
    queryKey: keyOf(id, step),
    queryFn: ({ pageParam, signal }) => read(id, step, pageParam, signal),
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor,
    staleTime: Number.POSITIVE_INFINITY, // `refreshAttempts` reads what can have changed
  });
}

/** Brings the attempts of an execution up to date, wherever they are shown. */
export async function refreshAttempts(client: QueryClient, id: string): Promise<void> {
  const shown = client.getQueryCache().findAll({ queryKey: ["attempts", id] });
  for (const query of shown) {
    if (query.getObserversCount()) await refreshPages(client, id, String(query.queryKey[2]));
    else client.removeQueries({ queryKey: query.queryKey }); // it is read again when it is shown
  }
}

/** Reads the pages again that can have changed: from the first one with an open attempt, or else the last one. */
async function refreshPages(client: QueryClient, id: string, step: string): Promise<void> {
  const data = client.getQueryData<Attempts>(keyOf(id, step));
  if (!data?.pages.length) return;
  const from = firstChanging(data.pages);
  const kept = { pages: data.pages.slice(0, from), pageParams: data.pageParams.slice(0, from) };
  for (let cursor: string | null = data.pageParams[from] ?? ""; cursor !== null; ) {
    const page: Page<AttemptRow> = await read(id, step, cursor);
    kept.pages.push(page);
    kept.pageParams.push(cursor);
    cursor = kept.pages.length < data.pages.length ? page.next_cursor : null;
  }
  client.setQueryData<Attempts>(keyOf(id, step), kept);
}

export function firstChanging(pages: readonly Page<AttemptRow>[]): number {
  const open = pages.findIndex((page) => page.items.some((row) => row.finished_at === null));
  return open < 0 ? pages.length - 1 : open;
}
