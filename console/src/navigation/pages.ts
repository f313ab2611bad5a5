import { Activity, LayoutDashboard, type LucideIcon, MailX, UserRoundCheck } from "lucide-react";

export interface PageEntry {
  path: string;
  title: string;
  /** The title in the navigation, where there is little room. */
  short: string;
  icon: LucideIcon;
  permission: string;
  /** The second key of its shortcut: `g`, then this one. */
  key: string;
}

/** The pages of the navigation, in its order. */
export const PAGES: readonly PageEntry[] = [
  { path: "/", title: "Overview", short: "Overview", icon: LayoutDashboard, permission: "executions:read", key: "o" },
  {
    path: "/executions",
    title: "Executions",
    short: "Executions",
    icon: Activity,
    permission: "executions:read",
    key: "e",
  },
  {
    path: "/reviews",
    title: "Approvals and reviews",
    short: "Approvals",
    icon: UserRoundCheck,
    permission: "reviews:read",
    key: "r",
  },
  {
    path: "/dead-letters",
    title: "Dead letters",
    short: "Dead letters",
    icon: MailX,
    permission: "dlq:read",
    key: "d",
  },
];
