import { useQueryClient } from "@tanstack/react-query";
import { type RefObject, useEffect, useState } from "react";

const INTERVAL = 2_000;

/** Reads a list again when it is out of date, unless the pointer or the focus is on it: rows must not move there.
 * Returns whether a change is held back. */
export function useFreshRows(area: RefObject<HTMLElement | null>, reload: () => Promise<unknown>): boolean {
  const client = useQueryClient();
  const [isHeld, setIsHeld] = useState(false);
  useEffect(() => {
    const timer = setInterval(() => {
      const isStale = client
        .getQueryCache()
        .findAll({ queryKey: ["executions"], type: "active" })
        .some((query) => query.state.isInvalidated);
      const isInUse = area.current?.matches(":hover, :focus-within") ?? false;
      if (isStale && !isInUse) void reload();
      setIsHeld(isStale && isInUse);
    }, INTERVAL);
    return () => clearInterval(timer);
  }, [client, area, reload]);
  return isHeld;
}
