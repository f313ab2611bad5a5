import { openReviews, useOverview } from "../api/overview";

/** The numbers beside the pages of the navigation. */
export function useCounts(): Record<string, number | undefined> {
  const { data } = useOverview();
  return data ? { "/reviews": openReviews(data), "/dead-letters": data.dlq.open } : {};
}
