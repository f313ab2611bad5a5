import { keepPreviousData, useInfiniteQuery, useQueries, useQuery } from "@tanstack/react-query";
import { get, type Query } from "./client";
import type {
  CloneDocument,
  DeadLetterRow,
  ExecutionDocument,
  ExecutionSummary,
  GraphDocument,
  IdentityDocument,
  Page,
  ReviewRow,
} from "./documents";

export const executionPath = (id: string) => `/v1/executions/${encodeURIComponent(id)}`;

export function useIdentity() {
  return useQuery({
    queryKey: ["me"],
    queryFn: ({ signal }) => get<IdentityDocument>("/v1/me", {}, signal),
    retry: false,
    staleTime: 60_000,
  });
}

export function useExecution(id: string) {
  return useQuery({
    queryKey: ["execution", id, "document"],
    queryFn: ({ signal }) => get<ExecutionDocument>(executionPath(id), {}, signal),
  });
}

export function useGraph(id: string) {
  return useQuery({
    queryKey: ["execution", id, "graph"],
    queryFn: ({ signal }) => get<GraphDocument>(`${executionPath(id)}/graph`, {}, signal),
    placeholderData: keepPreviousData,
  });
}

export function useExecutions(filters: Query) {
  return useInfiniteQuery({
    queryKey: ["executions", filters],
    queryFn: ({ pageParam, signal }) =>
      get<Page<ExecutionSummary>>("/v1/executions", { ...filters, cursor: pageParam, limit: 50 }, signal),
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor,
  });
}

export const REVIEW_KINDS = ["approval", "compensation", "compensation_failed", "indeterminate", "escalation"] as const;
export type PersonReview = (typeof REVIEW_KINDS)[number];

/** Open reviews of these kinds. Dead letters have a page of their own. */
export function useReviews(kinds: readonly PersonReview[], definition: string) {
  return useQueries({
    queries: kinds.map((kind) => ({
      queryKey: ["reviews", kind, definition],
      queryFn: ({ signal }: { signal: AbortSignal }) =>
        get<Page<ReviewRow>>("/v1/reviews", { kind, definition, limit: 100 }, signal),
    })),
    combine: (results) => ({
      rows: results.flatMap((result) => result.data?.items ?? []),
      hasMore: results.some((result) => result.data?.next_cursor),
      isPending: results.some((result) => result.isPending),
      error: results.find((result) => result.error)?.error ?? null,
      refetch: () => Promise.all(results.map((result) => result.refetch())),
    }),
  });
}

export function useReview(id: string) {
  return useQuery({
    queryKey: ["reviews", "one", id],
    queryFn: ({ signal }) => get<ReviewRow>(`/v1/reviews/${encodeURIComponent(id)}`, {}, signal),
    enabled: id !== "",
  });
}

export function useDeadLetters(filters: Query) {
  return useInfiniteQuery({
    queryKey: ["dead-letters", filters],
    queryFn: ({ pageParam, signal }) =>
      get<Page<DeadLetterRow>>("/v1/dlq", { ...filters, cursor: pageParam, limit: 50 }, signal),
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor,
  });
}

export function useDeadLetter(id: string) {
  return useQuery({
    queryKey: ["dead-letters", "one", id],
    queryFn: ({ signal }) => get<DeadLetterRow>(`/v1/dlq/${encodeURIComponent(id)}`, {}, signal),
    enabled: id !== "",
  });
}

export function useClones(id: string, fanOut: string) {
  return useInfiniteQuery({
    queryKey: ["execution", id, "clones", fanOut],
    queryFn: ({ pageParam, signal }) =>
      get<Page<CloneDocument>>(`${executionPath(id)}/steps`, { of: fanOut, cursor: pageParam, limit: 100 }, signal),
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor,
  });
}
