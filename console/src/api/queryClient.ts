import { QueryClient } from "@tanstack/react-query";
import { Problem } from "./problem";

/** The cache of what the service answered. A refusal is not repeated; an unreachable service is asked again. */
export function makeQueryClient(): QueryClient {
  return new QueryClient({
    defaultOptions: {
      queries: {
        staleTime: 10_000,
        retry: (failures, error) => !(error instanceof Problem && error.status < 500) && failures < 3,
        retryDelay: (failures) => Math.min(1_000 * 2 ** failures, 8_000),
        networkMode: "always", // the service may be on this machine, without any network
      },
    },
  });
}
