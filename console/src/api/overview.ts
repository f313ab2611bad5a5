import { useQuery } from "@tanstack/react-query";
import { get } from "./client";
import type { OverviewDocument } from "./documents";

/** The figures of the tenant. The service computes them once for all who ask at the same time. */
export function useOverview() {
  return useQuery({
    queryKey: ["overview"],
    queryFn: ({ signal }) => get<OverviewDocument>("/v1/overview", {}, signal),
    refetchInterval: 30_000, // what no status change tells: workers and queues
  });
}

/** How many reviews wait for a decision. */
export function openReviews({ reviews }: OverviewDocument): number {
  return Object.values(reviews.open).reduce((sum, count) => sum + count, 0);
}
