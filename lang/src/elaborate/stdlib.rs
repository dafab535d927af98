//! The standard library's sources, embedded. They are ordinary `.dtl`; nothing else knows their names but
//! the defaults for optimizers and schedules in plans.

/// Module name and text of every file of `stdlib/`.
pub const FILES: &[(&str, &str)] = &[
    ("attention", include_str!("../../../stdlib/attention.dtl")),
    ("dropout", include_str!("../../../stdlib/dropout.dtl")),
    ("loss", include_str!("../../../stdlib/loss.dtl")),
    ("nn", include_str!("../../../stdlib/nn.dtl")),
    ("optim", include_str!("../../../stdlib/optim.dtl")),
    ("rope", include_str!("../../../stdlib/rope.dtl")),
    ("schedule", include_str!("../../../stdlib/schedule.dtl")),
];

/// The text of `std::name`.
pub fn text(name: &str) -> Option<&'static str> {
    FILES.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}
